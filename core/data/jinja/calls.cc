#include <algorithm>

#include "core/base/status.h"
#include "core/data/jinja/characters.h"
#include "core/data/jinja/evaluator.h"
#include "core/data/jinja/filters.h"
#include "core/data/jinja/operators.h"
#include "core/data/jinja/printing.h"

namespace shoal::jinja {
namespace {

constexpr size_t kMaxMessage = 300;  // of raise_exception

Value Integer(size_t number) { return Value(static_cast<int64_t>(number)); }

Value LoopAttribute(const Loop& loop, std::string_view name) {
  const std::vector<Value>& items = loop.items->items;
  if (name == "index") {
    return Integer(loop.index + 1);
  }
  if (name == "index0") {
    return Integer(loop.index);
  }
  if (name == "revindex") {
    return Integer(items.size() - loop.index);
  }
  if (name == "revindex0") {
    return Integer(items.size() - loop.index - 1);
  }
  if (name == "first") {
    return Value(loop.index == 0);
  }
  if (name == "last") {
    return Value(loop.index + 1 == items.size());
  }
  if (name == "length") {
    return Integer(items.size());
  }
  if (name == "depth" || name == "depth0") {  // of recursive loops, which are not supported
    return Integer(name == "depth" ? 1 : 0);
  }
  if (name == "previtem" && loop.index > 0) {
    return items[loop.index - 1];
  }
  if (name == "nextitem" && loop.index + 1 < items.size()) {
    return items[loop.index + 1];
  }
  return Value(Undefined("loop." + std::string(name)));
}

}  // namespace

// NOLINTBEGIN(misc-no-recursion): bounded by Level
absl::StatusOr<Value> Evaluator::Attribute(const Value& value, const std::string& name) {
  SHOAL_RETURN_IF_ERROR(budget_.Make(kPartBytes + name.size()));
  if (value.loop() != nullptr) {
    return name == "cycle" ? Value(std::make_shared<const Method>(Method{value, name}))
                           : LoopAttribute(*value.loop(), name);
  }
  // A function comes before an element of its name, as in Jinja2.
  if (HasMethod(value, name)) {
    return Value(std::make_shared<const Method>(Method{value, name}));
  }
  if (value.undefined() || value.dict() != nullptr || value.As<Namespace*>() != nullptr) {
    return Item(value, Value(Text(name)), budget_);
  }
  return Value(Undefined(name));
}

absl::StatusOr<Value> Evaluator::Call(const Value& callee, const Arguments& arguments) {
  if (const Method* method = callee.method(); method != nullptr) {
    if (const Loop* loop = method->self.loop(); loop != nullptr) {
      const std::vector<Value>& values = arguments.positional;
      return values.empty() ? InvalidArgument("loop.cycle needs values")
                            : absl::StatusOr<Value>(values[loop->index % values.size()]);
    }
    return CallMethod(*method, arguments, budget_);
  }
  if (const auto* macro = callee.As<const Macro*>(); macro != nullptr) {
    return CallMacro(**macro, arguments);
  }
  if (const auto* function = callee.As<Function>(); function != nullptr) {
    return CallFunction(*function, arguments);
  }
  return InvalidArgument("{} is no function", callee.TypeName());
}

absl::StatusOr<Value> Evaluator::CallFunction(Function function, const Arguments& arguments) {
  switch (function) {
    case Function::kRange:
      return Range(arguments);
    case Function::kNamespace:
      return MakeNamespace(arguments);
    case Function::kDict:
      return NamedDict(arguments);
    case Function::kStrftimeNow:
      return Now(arguments);
    case Function::kRaiseException:
      break;
  }
  SHOAL_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::To(arguments, "raise_exception", {"message"}, 1));
  SHOAL_ASSIGN_OR_RETURN(const Text text, ToText(*bound[0], budget_));
  return InvalidArgument("raise_exception: {}", OneLine(text.str(), kMaxMessage));
}

absl::StatusOr<Value> Evaluator::Range(const Arguments& arguments) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "range", {"a", "b", "step"}, 1));
  SHOAL_ASSIGN_OR_RETURN(int64_t begin, bound.IntegerOr(0, 0));
  SHOAL_ASSIGN_OR_RETURN(int64_t end, bound.IntegerOr(1, 0));
  SHOAL_ASSIGN_OR_RETURN(const int64_t step, bound.IntegerOr(2, 1));
  if (bound[1] == nullptr) {
    end = std::exchange(begin, 0);
  }
  if (step == 0) {
    return InvalidArgument("range has step 0");
  }
  // In whole numbers without a sign, since the distance may be more than an int64_t holds.
  const bool empty = step > 0 ? begin >= end : begin <= end;
  const uint64_t distance = empty      ? 0
                            : step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                       : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
  const uint64_t by = step > 0 ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
  const uint64_t count = distance / by + (distance % by > 0 ? 1 : 0);
  SHOAL_RETURN_IF_ERROR(ChargeItems(count, budget_));
  std::vector<Value> numbers;
  for (int64_t at = begin; numbers.size() < count;) {
    numbers.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) {
      break;
    }
  }
  return MakeList(std::move(numbers));
}

// Charges for a copy of it.
absl::Status Evaluator::ChargeDict(const Dict& dict) {
  SHOAL_RETURN_IF_ERROR(ChargeItems(dict.items.size(), budget_));
  for (const auto& item : dict.items) {
    SHOAL_RETURN_IF_ERROR(budget_.Make(kPartBytes + item.first.memory()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Evaluator::NamedDict(const Arguments& arguments) {
  std::vector<std::pair<Text, Value>> items;
  for (const Value& from : arguments.positional) {
    if (from.dict() == nullptr || arguments.positional.size() > 1) {
      return InvalidArgument("dict takes a mapping and named values");
    }
    SHOAL_RETURN_IF_ERROR(ChargeDict(*from.dict()));
    items = from.dict()->items;
  }
  for (const auto& [name, value] : arguments.named) {
    SHOAL_RETURN_IF_ERROR(budget_.Make(kPartBytes + name.size() + sizeof(Value)));
    SHOAL_RETURN_IF_ERROR(budget_.Spend(items.size() / 4));
    std::erase_if(items, [&name = name](const auto& item) { return item.first.str() == name; });
    items.emplace_back(Text(name), value);
  }
  return MakeDict(std::move(items));
}

absl::StatusOr<Value> Evaluator::MakeNamespace(const Arguments& arguments) {
  SHOAL_RETURN_IF_ERROR(budget_.Make(kKeptBytes));
  SHOAL_ASSIGN_OR_RETURN(const Value dict, NamedDict(arguments));
  Namespace& made = namespaces_.emplace_back();
  SHOAL_RETURN_IF_ERROR(ChargeDict(*dict.dict()));
  for (const auto& [name, value] : dict.dict()->items) {
    SHOAL_RETURN_IF_ERROR(ChargeLook(made, name.str(), budget_));
    made[name.str()] = value;
  }
  return Value(&made);
}

absl::StatusOr<Value> Evaluator::Now(const Arguments& arguments) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "strftime_now", {"format"}, 1));
  SHOAL_ASSIGN_OR_RETURN(const std::string_view format, bound.TextOr(0, ""));
  SHOAL_RETURN_IF_ERROR(budget_.Make(kPartBytes + format.size()));
  char text[256];
  const size_t size = std::strftime(text, sizeof(text), std::string(format).c_str(), &options_.now);
  if (size == 0 && !format.empty()) {
    return InvalidArgument("the format of strftime_now gives nothing, or more than {} bytes",
                           sizeof(text));
  }
  return Value(Text(std::string(text, size)));
}

absl::StatusOr<Value> Evaluator::CallMacro(const Macro& macro, const Arguments& arguments) {
  const Statement& definition = *macro.definition;
  const std::string& name = definition.targets[0].name;
  const std::vector<Statement::Parameter>& parameters = definition.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return InvalidArgument("macro {} takes {} arguments, and is given {}", name, parameters.size(),
                           arguments.positional.size());
  }
  // Each of those by name is looked for among the parameters, and the other way round.
  SHOAL_RETURN_IF_ERROR(budget_.Spend(1 + parameters.size() * arguments.named.size() / 8));
  for (const auto& named : arguments.named) {
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&](const auto& parameter) { return parameter.name == named.first; })) {
      return InvalidArgument("macro {} has no argument '{}'", name, named.first);
    }
  }
  const Inner scope(*this, macro.scope);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Statement::Parameter& parameter = parameters[i];
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(),
                     [&](const auto& entry) { return entry.first == parameter.name; });
    if (i < arguments.positional.size()) {
      SHOAL_RETURN_IF_ERROR(Set(parameter.name, arguments.positional[i]));
    } else if (named != arguments.named.end()) {
      SHOAL_RETURN_IF_ERROR(Set(parameter.name, named->second));
    } else if (parameter.value != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(Value value, Evaluate(*parameter.value));
      SHOAL_RETURN_IF_ERROR(Set(parameter.name, std::move(value)));
    } else {
      SHOAL_RETURN_IF_ERROR(Set(parameter.name, Value(Undefined(parameter.name))));
    }
  }
  Text text;
  SHOAL_RETURN_IF_ERROR(Run(definition.body, text).status());
  return Value(std::move(text));
}
// NOLINTEND(misc-no-recursion)

}  // namespace shoal::jinja
