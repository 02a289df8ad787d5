#include <algorithm>
#include <array>

#include "core/base/status.h"
#include "core/data/jinja/characters.h"
#include "core/data/jinja/filters.h"
#include "core/data/jinja/operators.h"
#include "core/data/jinja/printing.h"

namespace shoal::jinja {
namespace {

constexpr std::array<std::string_view, 13> kOfText = {
    "capitalize", "endswith", "join",       "lower", "lstrip", "replace", "rsplit",
    "rstrip",     "split",    "startswith", "strip", "title",  "upper"};
constexpr std::array<std::string_view, 4> kOfDict = {"get", "items", "keys", "values"};

bool Names(const auto& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<Value> Stripped(const Text& text, std::string_view name, const Arguments& arguments,
                               Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, name, {"chars"}));
  std::optional<std::string_view> characters;
  if (bound[0] != nullptr && !bound[0]->none()) {
    SHOAL_ASSIGN_OR_RETURN(characters, bound.TextOr(0, ""));
  }
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  SHOAL_ASSIGN_OR_RETURN(Text stripped, Strip(text, side, characters, budget));
  return Value(std::move(stripped));
}

// One of several ends may be given as a tuple.
absl::StatusOr<Value> HasEnd(const Text& text, std::string_view name, const Arguments& arguments,
                             Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, name, {"affix"}, 1));
  std::vector<Value> affixes = {*bound[0]};
  if (bound[0]->list() != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(affixes, Elements(*bound[0], budget));
  }
  bool has = false;
  for (const Value& affix : affixes) {
    if (affix.text() == nullptr) {
      return InvalidArgument("{} takes a text, not {}", name, affix.TypeName());
    }
    const std::string& end = affix.text()->str();
    SHOAL_RETURN_IF_ERROR(budget.Read(std::min(end.size(), text.size())));
    has = has || (name == "startswith" ? text.str().starts_with(end) : text.str().ends_with(end));
  }
  return Value(has);
}

absl::StatusOr<Value> Parts(const Text& text, std::string_view name, const Arguments& arguments,
                            Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, name, {"sep", "maxsplit"}));
  SHOAL_ASSIGN_OR_RETURN(const int64_t limit, bound.IntegerOr(1, -1));
  std::optional<std::string_view> separator;
  if (bound[0] != nullptr && !bound[0]->none()) {
    SHOAL_ASSIGN_OR_RETURN(separator, bound.TextOr(0, ""));
    if (separator->empty()) {
      return InvalidArgument("the separator of {} is empty", name);
    }
  }
  if (name == "rsplit" && !separator.has_value()) {
    return InvalidArgument("rsplit without a separator is not supported");
  }
  SHOAL_ASSIGN_OR_RETURN(std::vector<Text> texts,
                         name == "split" ? Split(text, separator, limit, budget)
                                         : SplitFromRight(text, *separator, limit, budget));
  SHOAL_RETURN_IF_ERROR(ChargeItems(texts.size(), budget));
  std::vector<Value> parts;
  for (Text& part : texts) {
    parts.emplace_back(std::move(part));
  }
  return MakeList(std::move(parts));
}

absl::StatusOr<Value> Replaced(const Text& text, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::To(arguments, "replace", {"old", "new", "count"}, 2));
  SHOAL_ASSIGN_OR_RETURN(const std::string_view from, bound.TextOr(0, ""));
  SHOAL_ASSIGN_OR_RETURN(const Text to, ToText(*bound[1], budget));
  SHOAL_ASSIGN_OR_RETURN(const int64_t limit, bound.IntegerOr(2, -1));
  SHOAL_ASSIGN_OR_RETURN(Text replaced, Replace(text, from, to, limit, budget));
  return Value(std::move(replaced));
}

absl::StatusOr<Value> CallOfText(const Value& self, const std::string& name,
                                 const Arguments& arguments, Budget& budget) {
  const Text& text = *self.text();
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return Stripped(text, name, arguments, budget);
  }
  if (name == "startswith" || name == "endswith") {
    return HasEnd(text, name, arguments, budget);
  }
  if (name == "split" || name == "rsplit") {
    return Parts(text, name, arguments, budget);
  }
  if (name == "replace") {
    return Replaced(text, arguments, budget);
  }
  if (name == "join") {
    SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "join", {"items"}, 1));
    return CallFilter("join", *bound[0], {.positional = {self}, .named = {}}, budget);
  }
  if (name == "title") {  // the filter of that name has other words
    SHOAL_RETURN_IF_ERROR(Bound::To(arguments, name, {}).status());
    SHOAL_ASSIGN_OR_RETURN(Text title, ChangeCase(text, Case::kTitle, budget));
    return Value(std::move(title));
  }
  return CallFilter(name, self, arguments, budget);  // upper and its kin
}

absl::StatusOr<Value> CallOfDict(const Dict& dict, const std::string& name,
                                 const Arguments& arguments, Budget& budget) {
  if (name == "get") {
    SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "get", {"key", "default"}, 1));
    const Value* found = nullptr;
    if (bound[0]->text() != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(found, Find(dict, bound[0]->text()->str(), budget));
    }
    return found != nullptr ? *found : bound[1] != nullptr ? *bound[1] : Value(None{});
  }
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, name, {}).status());
  SHOAL_RETURN_IF_ERROR(ChargeItems(dict.items.size(), budget));
  std::vector<Value> parts;
  for (const auto& [key, value] : dict.items) {
    SHOAL_RETURN_IF_ERROR(budget.Make(name == "values" ? 0 : kPartBytes + key.memory()));
    if (name == "keys") {
      parts.emplace_back(key);
    } else if (name == "values") {
      parts.push_back(value);
    } else {
      SHOAL_RETURN_IF_ERROR(ChargeItems(2, budget));
      SHOAL_ASSIGN_OR_RETURN(parts.emplace_back(), MakeList({Value(key), value}, true));
    }
  }
  return MakeList(std::move(parts));
}

}  // namespace

bool HasMethod(const Value& value, std::string_view name) {
  return (value.text() != nullptr && Names(kOfText, name)) ||
         (value.dict() != nullptr && Names(kOfDict, name));
}

absl::StatusOr<Value> CallMethod(const Method& method, const Arguments& arguments, Budget& budget) {
  if (!HasMethod(method.self, method.name)) {
    return InvalidArgument("{} has no {}", method.self.TypeName(), method.name);
  }
  return method.self.text() != nullptr
             ? CallOfText(method.self, method.name, arguments, budget)
             : CallOfDict(*method.self.dict(), method.name, arguments, budget);
}

}  // namespace shoal::jinja
