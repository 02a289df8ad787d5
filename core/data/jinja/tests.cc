#include <algorithm>
#include <array>

#include "core/base/status.h"
#include "core/data/jinja/characters.h"
#include "core/data/jinja/filters.h"
#include "core/data/jinja/operators.h"

namespace shoal::jinja {
namespace {

// Tests without an argument.
using Test = bool (*)(const Value&);

absl::StatusOr<bool> IsCase(const Value& value, Case wanted, Budget& budget) {
  const Text* text = value.text();
  if (text == nullptr) {
    return false;
  }
  SHOAL_ASSIGN_OR_RETURN(const Text upper, ChangeCase(*text, Case::kUpper, budget));
  SHOAL_ASSIGN_OR_RETURN(const Text lower, ChangeCase(*text, Case::kLower, budget));
  return upper.str() != lower.str() &&
         text->str() == (wanted == Case::kUpper ? upper : lower).str();
}

bool IsSequence(const Value& value) {
  return value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr ||
         value.undefined();
}

constexpr std::array<std::pair<std::string_view, Test>, 16> kTests = {{
    {"boolean", [](const Value& v) { return v.As<bool>() != nullptr; }},
    {"callable",
     [](const Value& v) {
       return v.method() != nullptr || v.As<Function>() != nullptr ||
              v.As<const Macro*>() != nullptr;
     }},
    {"defined", [](const Value& v) { return !v.undefined(); }},
    {"even", [](const Value& v) { return v.IsInteger() && v.integer() % 2 == 0; }},
    {"false", [](const Value& v) { return v.As<bool>() != nullptr && !*v.As<bool>(); }},
    {"float", [](const Value& v) { return v.As<double>() != nullptr; }},
    {"integer", [](const Value& v) { return v.As<int64_t>() != nullptr; }},
    {"iterable", IsSequence},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"none", [](const Value& v) { return v.none(); }},
    {"number", [](const Value& v) { return v.IsNumber(); }},
    {"odd", [](const Value& v) { return v.IsInteger() && v.integer() % 2 != 0; }},
    {"sequence", IsSequence},
    {"string", [](const Value& v) { return v.text() != nullptr; }},
    {"true", [](const Value& v) { return v.As<bool>() != nullptr && *v.As<bool>(); }},
    {"undefined", [](const Value& v) { return v.undefined(); }},
}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kComparisons = {{
    {"==", "=="},
    {"eq", "=="},
    {"equalto", "=="},
    {"!=", "!="},
    {"ne", "!="},
    {"<", "<"},
    {"lt", "<"},
    {"lessthan", "<"},
    {"<=", "<="},
    {"le", "<="},
    {">", ">"},
    {"gt", ">"},
    {"greaterthan", ">"},
    {">=", ">="},
    {"ge", ">="},
    {"in", "in"},
    {"sameas", "=="},
}};

}  // namespace

absl::StatusOr<bool> CallTest(std::string_view name, const Value& value, const Arguments& arguments,
                              Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Spend(1 + arguments.named.size()));
  const auto named = [name](const auto& entry) { return entry.first == name; };
  if (const auto* test = std::find_if(kTests.begin(), kTests.end(), named); test != kTests.end()) {
    SHOAL_RETURN_IF_ERROR(Bound::To(arguments, name, {}).status());
    return test->second(value);
  }
  if (name == "lower" || name == "upper") {
    SHOAL_RETURN_IF_ERROR(Bound::To(arguments, name, {}).status());
    return IsCase(value, name == "upper" ? Case::kUpper : Case::kLower, budget);
  }
  const auto* comparison = std::find_if(kComparisons.begin(), kComparisons.end(), named);
  if (comparison == kComparisons.end() && name != "divisibleby") {
    return InvalidArgument("test '{}' is not supported", OneLine(name, kMaxShown));
  }
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, name, {"other"}, 1));
  if (name == "divisibleby") {
    SHOAL_ASSIGN_OR_RETURN(const Value rest, Binary("%", value, *bound[0], budget));
    return !rest.IsTrue();
  }
  if (name == "sameas" && value.variant().index() != bound[0]->variant().index()) {
    return false;
  }
  return Compare(comparison->second, value, *bound[0], budget);
}

}  // namespace shoal::jinja
