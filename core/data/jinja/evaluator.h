// Runs a parsed template. One for each rendering; not thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/jinja/arguments.h"
#include "core/data/jinja/budget.h"
#include "core/data/jinja/template.h"
#include "core/data/jinja/tree.h"

namespace shoal::jinja {

// About what a macro or a namespace takes, which live until the end.
inline constexpr size_t kKeptBytes = 1024;

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;  // names are the tree's
  bool kept = false;                                          // a macro looks here
};

// Names in its body are looked for where it was defined.
struct Macro {
  const Statement* definition = nullptr;
  Scope* scope = nullptr;
};

class Evaluator {
 public:
  // `name` is the template's in messages. All must outlive it.
  Evaluator(std::string_view name, const RenderOptions& options)
      : name_(name), options_(options), budget_(options.limits) {}

  absl::StatusOr<Text> Run(const Block& body, const Variables& variables);

 private:
  enum class Flow { kOn, kBreak, kContinue };

  // Counts what is within each other, while it lives.
  class Level {
   public:
    explicit Level(Evaluator& evaluator) : evaluator_(evaluator) { ++evaluator_.level_; }
    ~Level() { --evaluator_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    absl::Status Check() const;

   private:
    Evaluator& evaluator_;
  };

  // Makes a scope the current one, while it lives.
  class Inner {
   public:
    Inner(Evaluator& evaluator, Scope* parent);
    ~Inner();
    Inner(const Inner&) = delete;
    Inner& operator=(const Inner&) = delete;

   private:
    Evaluator& evaluator_;
    Scope* outer_;
  };

  // Puts "NAME:LINE: " before a message that has no place yet.
  absl::Status Placed(const absl::Status& status, int line);
  absl::StatusOr<Value> Find(std::string_view name);
  absl::Status Set(std::string_view name, Value value);

  // Statements, in statements.cc.
  absl::StatusOr<Flow> Run(const Block& body, Text& out);
  absl::StatusOr<Flow> Run(const Statement& statement, Text& out);
  absl::Status DefineMacro(const Statement& statement);
  absl::Status Print(const Statement& statement, Text& out);
  absl::Status Append(const Text& text, Text& out);
  absl::StatusOr<Flow> RunIf(const Statement& statement, Text& out);
  absl::StatusOr<Flow> RunFor(const Statement& statement, Text& out);
  absl::StatusOr<bool> Keeps(const Statement& loop, const Value& item);
  absl::Status SetItem(const Statement& loop, const Value& item);
  absl::Status Assign(const std::vector<Statement::Target>& targets, const Value& value);
  absl::Status AssignOne(const Statement::Target& target, const Value& value);
  absl::StatusOr<Flow> RunBody(const Statement& statement, Value& value);
  absl::StatusOr<Flow> RunCapturing(const Statement& statement, Text& out);

  // Expressions, in evaluator.cc.
  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<Value> EvaluateKind(const Expression& expression);
  absl::StatusOr<Value> EvaluateItems(const Expression& expression);
  absl::StatusOr<Value> EvaluateDict(const Expression& expression);
  absl::StatusOr<Value> EvaluateAttribute(const Expression& expression);
  absl::StatusOr<Value> EvaluateItem(const Expression& expression);
  absl::StatusOr<Value> EvaluateSlice(const Expression& expression);
  absl::StatusOr<Value> EvaluateCall(const Expression& expression);
  absl::StatusOr<Value> EvaluateFilter(const Expression& expression);
  absl::StatusOr<Value> EvaluateTest(const Expression& expression);
  absl::StatusOr<Value> EvaluateUnary(const Expression& expression);
  absl::StatusOr<Value> EvaluateBinary(const Expression& expression);
  absl::StatusOr<Value> EvaluateCompare(const Expression& expression);
  absl::StatusOr<Value> EvaluateConditional(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& expression);

  // Calls, in calls.cc.
  absl::StatusOr<Value> Attribute(const Value& value, const std::string& name);
  absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments);
  absl::StatusOr<Value> CallFunction(Function function, const Arguments& arguments);
  absl::StatusOr<Value> CallMacro(const Macro& macro, const Arguments& arguments);
  absl::StatusOr<Value> Range(const Arguments& arguments);
  absl::StatusOr<Value> MakeNamespace(const Arguments& arguments);
  absl::Status ChargeDict(const Dict& dict);
  absl::StatusOr<Value> NamedDict(const Arguments& arguments);
  absl::StatusOr<Value> Now(const Arguments& arguments);

  const std::string_view name_;
  const RenderOptions& options_;
  Budget budget_;
  int level_ = 0;
  bool placed_ = false;  // whether the error under way has its place
  Scope* scope_ = nullptr;
  // Live until the end, since values refer to them.
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  std::deque<Namespace> namespaces_;
  std::deque<Macro> macros_;
};

}  // namespace shoal::jinja
