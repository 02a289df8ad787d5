#include "core/base/status.h"
#include "core/data/jinja/evaluator.h"
#include "core/data/jinja/operators.h"
#include "core/data/jinja/printing.h"

namespace shoal::jinja {

// NOLINTBEGIN(misc-no-recursion): bounded by Level
absl::StatusOr<Evaluator::Flow> Evaluator::Run(const Block& body, Text& out) {
  for (const std::unique_ptr<Statement>& statement : body) {
    const Level level(*this);
    absl::Status bounds = level.Check();
    if (bounds.ok()) {
      bounds = budget_.Spend(1);
    }
    if (!bounds.ok()) {
      return Placed(bounds, statement->line);
    }
    const absl::StatusOr<Flow> flow = Run(*statement, out);
    if (!flow.ok()) {
      return Placed(flow.status(), statement->line);
    }
    if (*flow != Flow::kOn) {
      return *flow;
    }
  }
  return Flow::kOn;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Run(const Statement& statement, Text& out) {
  switch (statement.kind) {
    case Statement::Kind::kData:
      SHOAL_RETURN_IF_ERROR(Append(*statement.data.text(), out));
      return Flow::kOn;
    case Statement::Kind::kPrint:
      SHOAL_RETURN_IF_ERROR(Print(statement, out));
      return Flow::kOn;
    case Statement::Kind::kIf:
      return RunIf(statement, out);
    case Statement::Kind::kFor:
      return RunFor(statement, out);
    case Statement::Kind::kSet: {
      SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
      SHOAL_RETURN_IF_ERROR(Assign(statement.targets, value));
      return Flow::kOn;
    }
    case Statement::Kind::kMacro:
      SHOAL_RETURN_IF_ERROR(DefineMacro(statement));
      return Flow::kOn;
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
    case Statement::Kind::kSetBlock:
    case Statement::Kind::kFilter:
    case Statement::Kind::kGeneration:
      break;
  }
  return RunCapturing(statement, out);
}

absl::Status Evaluator::DefineMacro(const Statement& statement) {
  SHOAL_RETURN_IF_ERROR(budget_.Make(kKeptBytes));
  for (Scope* scope = scope_; scope != nullptr && !scope->kept; scope = scope->parent) {
    scope->kept = true;
  }
  const Macro* macro = &macros_.emplace_back(Macro{&statement, scope_});
  return Set(statement.targets[0].name, Value(macro));
}

absl::Status Evaluator::Append(const Text& text, Text& out) {
  SHOAL_RETURN_IF_ERROR(budget_.Make(text.memory()));
  if (static_cast<int64_t>(out.size() + text.size()) > options_.limits.output_bytes) {
    return ResourceExhausted("more than {} bytes of output", options_.limits.output_bytes);
  }
  out.Append(text);
  return absl::OkStatus();
}

absl::Status Evaluator::Print(const Statement& statement, Text& out) {
  SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
  SHOAL_ASSIGN_OR_RETURN(const Text text, ToText(value, budget_));
  return Append(text, out);
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunIf(const Statement& statement, Text& out) {
  for (const Statement::Branch& branch : statement.branches) {
    bool taken = branch.condition == nullptr;
    if (!taken) {
      SHOAL_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
      taken = condition.IsTrue();
    }
    if (taken) {
      return Run(branch.body, out);
    }
  }
  return Flow::kOn;
}

absl::Status Evaluator::SetItem(const Statement& loop, const Value& item) {
  if (loop.targets.size() == 1) {
    return Set(loop.targets[0].name, item);
  }
  return Assign(loop.targets, item);
}

absl::StatusOr<bool> Evaluator::Keeps(const Statement& loop, const Value& item) {
  if (loop.condition == nullptr) {
    return true;
  }
  const Inner scope(*this, scope_);
  SHOAL_RETURN_IF_ERROR(SetItem(loop, item));
  SHOAL_ASSIGN_OR_RETURN(const Value condition, Evaluate(*loop.condition));
  return condition.IsTrue();
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunFor(const Statement& statement, Text& out) {
  SHOAL_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(value, budget_));
  SHOAL_RETURN_IF_ERROR(ChargeItems(elements.size(), budget_));
  std::vector<Value> kept;
  for (const Value& element : elements) {
    SHOAL_ASSIGN_OR_RETURN(const bool keeps, Keeps(statement, element));
    if (keeps) {
      kept.push_back(element);
    }
  }
  if (kept.empty()) {
    const Inner scope(*this, scope_);
    return Run(statement.other, out);
  }
  SHOAL_ASSIGN_OR_RETURN(const Value list, MakeList(std::move(kept)));
  const auto items = *list.As<std::shared_ptr<const List>>();
  for (size_t i = 0; i < items->items.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(budget_.Spend(1));
    const Inner scope(*this, scope_);
    SHOAL_RETURN_IF_ERROR(Set("loop", Value(std::make_shared<const Loop>(Loop{items, i}))));
    SHOAL_RETURN_IF_ERROR(SetItem(statement, items->items[i]));
    SHOAL_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body, out));
    if (flow == Flow::kBreak) {
      break;
    }
  }
  return Flow::kOn;
}

absl::Status Evaluator::Assign(const std::vector<Statement::Target>& targets, const Value& value) {
  if (targets.size() == 1) {
    return AssignOne(targets[0], value);
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> parts, Elements(value, budget_));
  if (parts.size() != targets.size()) {
    return InvalidArgument("{} values for {} names", parts.size(), targets.size());
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(AssignOne(targets[i], parts[i]));
  }
  return absl::OkStatus();
}

absl::Status Evaluator::AssignOne(const Statement::Target& target, const Value& value) {
  if (target.attribute.empty()) {
    return Set(target.name, value);
  }
  SHOAL_ASSIGN_OR_RETURN(const Value space, Find(target.name));
  const auto* found = space.As<Namespace*>();
  if (found == nullptr) {
    return InvalidArgument("'{}' is {}; only attributes of a namespace can be set", target.name,
                           space.TypeName());
  }
  SHOAL_RETURN_IF_ERROR(ChargeLook(**found, target.attribute, budget_));
  (**found)[target.attribute] = value;
  return absl::OkStatus();
}

// Sets `value` to what a tag's body renders to, through its filters.
absl::StatusOr<Evaluator::Flow> Evaluator::RunBody(const Statement& statement, Value& value) {
  const Inner scope(*this, scope_);
  Text text;
  SHOAL_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body, text));
  if (statement.value == nullptr) {
    value = Value(std::move(text));
  } else if (flow == Flow::kOn) {
    SHOAL_RETURN_IF_ERROR(Set(kBodyName, Value(std::move(text))));
    SHOAL_ASSIGN_OR_RETURN(value, Evaluate(*statement.value));
  }
  return flow;
}

absl::StatusOr<Evaluator::Flow> Evaluator::RunCapturing(const Statement& statement, Text& out) {
  Value value;
  SHOAL_ASSIGN_OR_RETURN(const Flow flow, RunBody(statement, value));
  if (flow != Flow::kOn && statement.kind != Statement::Kind::kGeneration) {
    return flow;  // as in Jinja2, what there is of the body is lost
  }
  if (statement.kind == Statement::Kind::kSetBlock) {
    SHOAL_RETURN_IF_ERROR(Assign(statement.targets, value));
    return Flow::kOn;
  }
  SHOAL_ASSIGN_OR_RETURN(Text text, ToText(value, budget_));
  if (statement.kind == Statement::Kind::kGeneration) {
    SHOAL_RETURN_IF_ERROR(budget_.Make(text.memory()));
    text.MarkGeneration();
  }
  SHOAL_RETURN_IF_ERROR(Append(text, out));
  return flow;
}
// NOLINTEND(misc-no-recursion)

}  // namespace shoal::jinja
