#include "core/data/jinja/evaluator.h"

#include <algorithm>
#include <array>

#include "core/base/status.h"
#include "core/data/jinja/filters.h"
#include "core/data/jinja/operators.h"

namespace shoal::jinja {

namespace {

constexpr std::array<std::pair<std::string_view, Function>, 5> kFunctions = {
    {{"range", Function::kRange},
     {"namespace", Function::kNamespace},
     {"dict", Function::kDict},
     {"raise_exception", Function::kRaiseException},
     {"strftime_now", Function::kStrftimeNow}}};

}  // namespace

absl::Status Evaluator::Level::Check() const {
  return evaluator_.level_ <= evaluator_.options_.limits.depth
             ? absl::OkStatus()
             : ResourceExhausted("more than {} levels within each other; does a macro call itself?",
                                 evaluator_.options_.limits.depth);
}

Evaluator::Inner::Inner(Evaluator& evaluator, Scope* parent)
    : evaluator_(evaluator), outer_(evaluator.scope_) {
  if (evaluator_.free_scopes_.empty()) {
    evaluator_.free_scopes_.push_back(&evaluator_.scopes_.emplace_back());
  }
  evaluator_.scope_ = evaluator_.free_scopes_.back();
  evaluator_.free_scopes_.pop_back();
  evaluator_.scope_->parent = parent;
}

Evaluator::Inner::~Inner() {
  if (!evaluator_.scope_->kept) {
    evaluator_.scope_->variables.clear();
    evaluator_.free_scopes_.push_back(evaluator_.scope_);
  }
  evaluator_.scope_ = outer_;
}

absl::Status Evaluator::Placed(const absl::Status& status, int line) {
  if (status.ok() || placed_) {
    return status;
  }
  placed_ = true;
  return Annotate(status, fmt::format("{}:{}", name_, line));
}

absl::StatusOr<Value> Evaluator::Find(std::string_view name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    SHOAL_RETURN_IF_ERROR(budget_.Spend(1 + scope->variables.size() / 16));
    for (const auto& [known, value] : scope->variables) {
      if (known == name) {
        return value;
      }
    }
  }
  return Value(Undefined(name));
}

absl::Status Evaluator::Set(std::string_view name, Value value) {
  SHOAL_RETURN_IF_ERROR(budget_.Spend(1 + scope_->variables.size() / 16));
  for (auto& [known, old] : scope_->variables) {
    if (known == name) {
      old = std::move(value);
      return absl::OkStatus();
    }
  }
  SHOAL_RETURN_IF_ERROR(budget_.Make(sizeof(Value)));
  scope_->variables.emplace_back(name, std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<Text> Evaluator::Run(const Block& body, const Variables& variables) {
  const Inner globals(*this, nullptr);
  for (const auto& [name, function] : kFunctions) {
    SHOAL_RETURN_IF_ERROR(Set(name, Value(function)));
  }
  for (const auto& [name, value] : variables) {
    SHOAL_RETURN_IF_ERROR(Set(name, value));
  }
  Text out;
  SHOAL_RETURN_IF_ERROR(Run(body, out).status());
  return out;
}

// NOLINTBEGIN(misc-no-recursion): bounded by Level
absl::StatusOr<Value> Evaluator::Evaluate(const Expression& expression) {
  const Level level(*this);
  absl::Status bounds = level.Check();
  if (bounds.ok()) {
    bounds = budget_.Spend(1);
  }
  if (!bounds.ok()) {
    return Placed(bounds, expression.line);
  }
  absl::StatusOr<Value> value = EvaluateKind(expression);
  if (!value.ok()) {
    return Placed(value.status(), expression.line);
  }
  return value;
}

absl::StatusOr<Value> Evaluator::EvaluateKind(const Expression& expression) {
  switch (expression.kind) {
    case Expression::Kind::kConstant:
      return expression.constant;
    case Expression::Kind::kName:
      return Find(expression.name);
    case Expression::Kind::kList:
    case Expression::Kind::kTuple:
      return EvaluateItems(expression);
    case Expression::Kind::kDict:
      return EvaluateDict(expression);
    case Expression::Kind::kAttribute:
      return EvaluateAttribute(expression);
    case Expression::Kind::kItem:
      return EvaluateItem(expression);
    case Expression::Kind::kSlice:
      return EvaluateSlice(expression);
    case Expression::Kind::kCall:
      return EvaluateCall(expression);
    case Expression::Kind::kFilter:
      return EvaluateFilter(expression);
    case Expression::Kind::kTest:
      return EvaluateTest(expression);
    case Expression::Kind::kUnary:
      return EvaluateUnary(expression);
    case Expression::Kind::kBinary:
      return EvaluateBinary(expression);
    case Expression::Kind::kCompare:
      return EvaluateCompare(expression);
    case Expression::Kind::kConditional:
      break;
  }
  return EvaluateConditional(expression);
}

absl::StatusOr<Value> Evaluator::EvaluateItems(const Expression& expression) {
  SHOAL_RETURN_IF_ERROR(ChargeItems(expression.operands.size(), budget_));
  std::vector<Value> items;
  for (const ExpressionPtr& operand : expression.operands) {
    SHOAL_ASSIGN_OR_RETURN(items.emplace_back(), Evaluate(*operand));
  }
  return MakeList(std::move(items), expression.kind == Expression::Kind::kTuple);
}

absl::StatusOr<Value> Evaluator::EvaluateDict(const Expression& expression) {
  SHOAL_RETURN_IF_ERROR(ChargeItems(expression.operands.size() / 2, budget_));
  std::vector<std::pair<Text, Value>> items;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    SHOAL_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[i]));
    SHOAL_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1]));
    if (key.text() == nullptr) {
      return InvalidArgument("a key of a mapping is {}; only texts are supported", key.TypeName());
    }
    SHOAL_ASSIGN_OR_RETURN(const size_t at, Position(items, key.text()->str(), budget_));
    if (at < items.size()) {
      items[at].second = std::move(value);
    } else {
      SHOAL_RETURN_IF_ERROR(budget_.Make(kPartBytes + key.text()->memory()));
      items.emplace_back(*key.text(), std::move(value));
    }
  }
  return MakeDict(std::move(items));
}

absl::StatusOr<Value> Evaluator::EvaluateAttribute(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  return Attribute(value, expression.name);
}

absl::StatusOr<Value> Evaluator::EvaluateItem(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  SHOAL_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[1]));
  SHOAL_ASSIGN_OR_RETURN(Value item, Item(value, key, budget_));
  // Jinja2 takes an attribute where there is no element.
  return item.undefined() && key.text() != nullptr ? Attribute(value, key.text()->str())
                                                   : std::move(item);
}

absl::StatusOr<Value> Evaluator::EvaluateSlice(const Expression& expression) {
  std::vector<Value> values;
  for (const ExpressionPtr& operand : expression.operands) {
    SHOAL_ASSIGN_OR_RETURN(values.emplace_back(), Evaluate(*operand));
  }
  return Slice(values[0], values[1], values[2], values[3], budget_);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const Expression& expression) {
  Arguments arguments;
  for (const auto& [name, argument] : expression.arguments) {
    SHOAL_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    if (name.empty()) {
      arguments.positional.push_back(std::move(value));
    } else {
      arguments.named.emplace_back(name, std::move(value));
    }
  }
  return arguments;
}

absl::StatusOr<Value> Evaluator::EvaluateCall(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  SHOAL_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  if (function.undefined()) {
    return InvalidArgument("function '{}' is not supported", callee.name);
  }
  SHOAL_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  return Call(function, arguments);
}

absl::StatusOr<Value> Evaluator::EvaluateFilter(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  SHOAL_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  return CallFilter(expression.name, value, arguments, budget_);
}

absl::StatusOr<Value> Evaluator::EvaluateTest(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  SHOAL_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
  SHOAL_ASSIGN_OR_RETURN(const bool is, CallTest(expression.name, value, arguments, budget_));
  return Value(is);
}

absl::StatusOr<Value> Evaluator::EvaluateUnary(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  if (expression.name == "not") {
    return Value(!value.IsTrue());
  }
  if (expression.name == "-" && value.IsNumber() && !value.IsInteger()) {
    return Value(-value.number());  // 0 - 0.0 is not -0.0
  }
  return Binary(expression.name, Value(int64_t{0}), value, budget_);
}

absl::StatusOr<Value> Evaluator::EvaluateBinary(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  if ((expression.name == "and" && !left.IsTrue()) || (expression.name == "or" && left.IsTrue())) {
    return left;
  }
  SHOAL_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[1]));
  if (expression.name == "and" || expression.name == "or") {
    return right;
  }
  return Binary(expression.name, left, right, budget_);
}

absl::StatusOr<Value> Evaluator::EvaluateCompare(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  bool holds = true;
  for (size_t i = 0; i < expression.names.size() && holds; ++i) {
    SHOAL_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1]));
    SHOAL_ASSIGN_OR_RETURN(holds, Compare(expression.names[i], left, right, budget_));
    left = std::move(right);
  }
  return Value(holds);
}

absl::StatusOr<Value> Evaluator::EvaluateConditional(const Expression& expression) {
  SHOAL_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.operands[1]));
  if (condition.IsTrue()) {
    return Evaluate(*expression.operands[0]);
  }
  return expression.operands.size() > 2 ? Evaluate(*expression.operands[2])
                                        : Value(Undefined("an if without else"));
}
// NOLINTEND(misc-no-recursion)

}  // namespace shoal::jinja
