// Parses expressions of a template, with Jinja2's precedence, from a list of tokens that statements
// are read from, too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/data/jinja/lexer.h"
#include "core/data/jinja/tree.h"

namespace shoal::jinja {

class ExpressionParser {
 public:
  // `name` outlives it.
  ExpressionParser(std::vector<Token> tokens, std::string_view name)
      : tokens_(std::move(tokens)), name_(name) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Skip() { at_ += at_ + 1 < tokens_.size() ? 1 : 0; }
  bool AtName(std::string_view name) const { return current().Is(Token::Kind::kName, name); }
  bool AtOperator(std::string_view text) const {
    return current().Is(Token::Kind::kOperator, text);
  }
  // Skips it where it comes.
  bool TakeName(std::string_view name);
  bool TakeOperator(std::string_view text);
  absl::Status Expect(Token::Kind kind, std::string_view what);
  absl::Status ExpectOperator(std::string_view text);
  absl::StatusOr<std::string> Identifier();

  absl::StatusOr<ExpressionPtr> Parse() { return Conditional(); }
  // An expression, or several with commas between. Without `conditional` an `if` ends it.
  absl::StatusOr<ExpressionPtr> Tuple(bool conditional);
  // A filter's name and arguments, and those of more after it, over `operand`.
  absl::StatusOr<ExpressionPtr> Filters(ExpressionPtr operand);

  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("{}:{}: {}", name_, current().line,
                           fmt::format(format, std::forward<Args>(args)...));
  }
  absl::Status Unexpected(std::string_view expected) const;

  // Bounds what nests, while it lives.
  class Nest {
   public:
    explicit Nest(ExpressionParser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nest() { --parser_.nesting_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;
    absl::Status Check() const;

   private:
    ExpressionParser& parser_;
  };

 private:
  using Step = absl::StatusOr<ExpressionPtr> (ExpressionParser::*)();
  ExpressionPtr Make(Expression::Kind kind, std::string name = "") const;
  // Takes `operand` in; InvalidArgument where the expression gets too high.
  absl::Status Adopt(Expression& into, ExpressionPtr operand) const;
  absl::StatusOr<ExpressionPtr> LeftToRight(std::initializer_list<std::string_view> operators,
                                            Step operand);
  absl::StatusOr<ExpressionPtr> Conditional();
  absl::StatusOr<ExpressionPtr> Or() { return LeftToRight({"or"}, &ExpressionParser::And); }
  absl::StatusOr<ExpressionPtr> And() { return LeftToRight({"and"}, &ExpressionParser::Not); }
  absl::StatusOr<ExpressionPtr> Not();
  absl::StatusOr<ExpressionPtr> Compare();
  std::string TakeComparison();
  absl::StatusOr<ExpressionPtr> Sum() {
    return LeftToRight({"+", "-"}, &ExpressionParser::Concatenation);
  }
  absl::StatusOr<ExpressionPtr> Concatenation() {
    return LeftToRight({"~"}, &ExpressionParser::Product);
  }
  absl::StatusOr<ExpressionPtr> Product() {
    return LeftToRight({"*", "/", "//", "%"}, &ExpressionParser::Power);
  }
  absl::StatusOr<ExpressionPtr> Power() { return LeftToRight({"**"}, &ExpressionParser::Filtered); }
  absl::StatusOr<ExpressionPtr> Filtered();
  absl::StatusOr<ExpressionPtr> Unary();
  absl::StatusOr<ExpressionPtr> Postfix(ExpressionPtr operand);
  absl::StatusOr<ExpressionPtr> Call(ExpressionPtr callee);
  absl::StatusOr<ExpressionPtr> Primary();
  absl::StatusOr<ExpressionPtr> Number(bool integer);
  absl::StatusOr<ExpressionPtr> Items(Expression::Kind kind, std::string_view close);
  absl::StatusOr<ExpressionPtr> Attribute(ExpressionPtr operand);
  absl::StatusOr<ExpressionPtr> Subscript(ExpressionPtr operand);
  absl::StatusOr<ExpressionPtr> Test(ExpressionPtr operand);
  absl::Status Arguments(Expression& call);

  const std::vector<Token> tokens_;
  const std::string_view name_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace shoal::jinja
