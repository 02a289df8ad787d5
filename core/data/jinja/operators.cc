#include "core/data/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "core/data/jinja/characters.h"
#include "core/data/jinja/printing.h"

namespace shoal::jinja {
namespace {

absl::Status NotFor(std::string_view name, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->undefined()) {
      return InvalidArgument("'{}' is undefined", value->As<Undefined>()->name);
    }
  }
  return InvalidArgument("{} does not take {} and {}", name, left.TypeName(), right.TypeName());
}

absl::StatusOr<Value> Concatenated(const Value& left, const Value& right, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(Text text, ToText(left, budget));
  SHOAL_ASSIGN_OR_RETURN(const Text more, ToText(right, budget));
  text.Append(more);
  return Value(std::move(text));
}

absl::StatusOr<Value> Repeated(const Value& value, int64_t times, Budget& budget) {
  times = std::max<int64_t>(times, 0);
  if (const Text* text = value.text(); text != nullptr) {
    Text all;
    for (int64_t i = 0; i < times && !text->empty(); ++i) {
      SHOAL_RETURN_IF_ERROR(budget.Make(text->size()));
      all.Append(*text);
    }
    return Value(std::move(all));
  }
  std::vector<Value> all;
  const std::vector<Value>& items = value.list()->items;
  for (int64_t i = 0; i < times && !items.empty(); ++i) {
    SHOAL_RETURN_IF_ERROR(budget.Spend(std::ssize(items)));
    all.insert(all.end(), items.begin(), items.end());
  }
  return MakeList(std::move(all), value.list()->tuple);
}

// Rounds down, as Python does.
absl::StatusOr<Value> Integers(std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (name == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (name == "**") {
    result = 1;
    for (int64_t i = 0; i < b && !overflow && (a < -1 || a > 1 || i < 2 + b % 2); ++i) {
      overflow = __builtin_mul_overflow(result, a, &result);
    }
  } else if (b == 0) {
    return InvalidArgument("division by zero");
  } else if (a == INT64_MIN && b == -1) {
    overflow = name == "//";
  } else {
    const int64_t rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    result = name == "//" ? a / b - (down ? 1 : 0) : rest + (down ? b : 0);
  }
  return overflow ? absl::StatusOr<Value>(InvalidArgument("{} {} {} is too large", a, name, b))
                  : Value(result);
}

absl::StatusOr<Value> Numbers(std::string_view name, double a, double b) {
  if (name == "+") {
    return Value(a + b);
  }
  if (name == "-") {
    return Value(a - b);
  }
  if (name == "*") {
    return Value(a * b);
  }
  if (name == "**") {
    return Value(std::pow(a, b));
  }
  if (b == 0) {
    return InvalidArgument("division by zero");
  }
  if (name == "/") {
    return Value(a / b);
  }
  const double whole = std::floor(a / b);
  return Value(name == "//" ? whole : a - whole * b);
}

// Where an index of a slice lies, within the bounds for its direction.
int64_t Clamped(const Value& index, int64_t size, bool forward, bool begin) {
  if (index.none()) {
    return forward == begin ? (forward ? 0 : -1) : (forward ? size : size - 1);
  }
  int64_t at = index.integer();
  at += at < 0 ? size : 0;
  return std::clamp(at, forward ? int64_t{0} : int64_t{-1}, forward ? size : size - 1);
}

}  // namespace

absl::StatusOr<Value> Binary(std::string_view name, const Value& left, const Value& right,
                             Budget& budget) {
  if (name == "~") {
    return Concatenated(left, right, budget);
  }
  if (left.IsNumber() && right.IsNumber()) {
    const bool whole = left.IsInteger() && right.IsInteger() && name != "/" &&
                       (name != "**" || right.integer() >= 0);
    return whole ? Integers(name, left.integer(), right.integer())
                 : Numbers(name, left.number(), right.number());
  }
  if (name == "+" && left.text() != nullptr && right.text() != nullptr) {
    return Concatenated(left, right, budget);
  }
  // Where a template wants text, arguments of a tool call are their JSON.
  if (name == "+" && left.text() != nullptr && right.dict() != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(Text json, ToJson(right, {}, budget));
    return Concatenated(left, Value(std::move(json)), budget);
  }
  if (name == "+" && left.list() != nullptr && right.list() != nullptr) {
    SHOAL_RETURN_IF_ERROR(
        budget.Spend(std::ssize(left.list()->items) + std::ssize(right.list()->items)));
    std::vector<Value> items = left.list()->items;
    items.insert(items.end(), right.list()->items.begin(), right.list()->items.end());
    return MakeList(std::move(items), left.list()->tuple && right.list()->tuple);
  }
  const auto repeats = [](const Value& value) {
    return value.text() != nullptr || value.list() != nullptr;
  };
  if (name == "*" && repeats(left) && right.IsInteger()) {
    return Repeated(left, right.integer(), budget);
  }
  if (name == "*" && left.IsInteger() && repeats(right)) {
    return Repeated(right, left.integer(), budget);
  }
  return NotFor(name, left, right);
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as a value is
absl::StatusOr<bool> Equal(const Value& left, const Value& right, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Spend(1));
  if (left.IsInteger() && right.IsInteger()) {
    return left.integer() == right.integer();
  }
  if (left.IsNumber() && right.IsNumber()) {
    return left.number() == right.number();
  }
  if (left.variant().index() != right.variant().index()) {
    return false;
  }
  if (left.text() != nullptr) {
    return left.text()->str() == right.text()->str();
  }
  if (left.list() != nullptr) {
    const std::vector<Value>& a = left.list()->items;
    const std::vector<Value>& b = right.list()->items;
    bool equal = a.size() == b.size() && left.list()->tuple == right.list()->tuple;
    for (size_t i = 0; equal && i < a.size(); ++i) {
      SHOAL_ASSIGN_OR_RETURN(equal, Equal(a[i], b[i], budget));
    }
    return equal;
  }
  if (left.dict() != nullptr) {
    bool equal = left.dict()->items.size() == right.dict()->items.size();
    for (const auto& [key, value] : left.dict()->items) {
      const Value* other = equal ? right.dict()->Find(key.str()) : nullptr;
      if (other == nullptr) {
        return false;
      }
      SHOAL_RETURN_IF_ERROR(budget.Spend(std::ssize(right.dict()->items) / 16));
      SHOAL_ASSIGN_OR_RETURN(equal, Equal(value, *other, budget));
    }
    return equal;
  }
  if (const auto* space = left.As<Namespace*>(); space != nullptr) {
    return *space == *right.As<Namespace*>();
  }
  return left.undefined() || left.none();
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as a value is
absl::StatusOr<int> Order(const Value& left, const Value& right, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Spend(1));
  if (left.IsInteger() && right.IsInteger()) {
    return left.integer() < right.integer() ? -1 : left.integer() > right.integer() ? 1 : 0;
  }
  if (left.IsNumber() && right.IsNumber()) {
    return left.number() < right.number() ? -1 : left.number() > right.number() ? 1 : 0;
  }
  if (left.text() != nullptr && right.text() != nullptr) {
    const int order = left.text()->str().compare(right.text()->str());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (left.list() == nullptr || right.list() == nullptr) {
    return NotFor("<", left, right);
  }
  const std::vector<Value>& a = left.list()->items;
  const std::vector<Value>& b = right.list()->items;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const int order, Order(a[i], b[i], budget));
    if (order != 0) {
      return order;
    }
  }
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

absl::StatusOr<bool> Compare(std::string_view name, const Value& left, const Value& right,
                             Budget& budget) {
  if (name == "in" || name == "not in") {
    SHOAL_ASSIGN_OR_RETURN(const bool contains, Contains(right, left, budget));
    return contains == (name == "in");
  }
  if (name == "==" || name == "!=") {
    SHOAL_ASSIGN_OR_RETURN(const bool equal, Equal(left, right, budget));
    return equal == (name == "==");
  }
  SHOAL_ASSIGN_OR_RETURN(const int order, Order(left, right, budget));
  return name == "<" ? order < 0 : name == "<=" ? order <= 0 : name == ">" ? order > 0 : order >= 0;
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* text = container.text(); text != nullptr) {
    if (item.text() == nullptr) {
      return NotFor("in", item, container);
    }
    SHOAL_RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(text->size() / 64)));
    return text->str().find(item.text()->str()) != std::string::npos;
  }
  if (const Dict* dict = container.dict(); dict != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Spend(std::ssize(dict->items) / 16));
    return item.text() != nullptr && dict->Find(item.text()->str()) != nullptr;
  }
  if (const List* list = container.list(); list != nullptr) {
    for (const Value& entry : list->items) {
      SHOAL_ASSIGN_OR_RETURN(const bool equal, Equal(entry, item, budget));
      if (equal) {
        return true;
      }
    }
    return false;
  }
  return container.undefined() ? absl::StatusOr<bool>(false) : NotFor("in", item, container);
}

absl::StatusOr<Value> Item(const Value& value, const Value& key, Budget& budget) {
  const auto missing = [&] {
    return Value(Undefined{key.text() != nullptr ? key.text()->str()
                           : key.IsInteger()     ? fmt::format("[{}]", key.integer())
                                                 : std::string(key.TypeName())});
  };
  if (value.undefined()) {
    return NotFor("[]", value, key);
  }
  if (value.dict() != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Spend(std::ssize(value.dict()->items) / 16));
    const Value* found = key.text() == nullptr ? nullptr : value.dict()->Find(key.text()->str());
    return found == nullptr ? missing() : *found;
  }
  if (const auto* space = value.As<Namespace*>(); space != nullptr && key.text() != nullptr) {
    const auto found = (*space)->find(key.text()->str());
    return found == (*space)->end() ? missing() : found->second;
  }
  if (!key.IsInteger()) {
    return missing();
  }
  int64_t index = key.integer();
  if (const List* list = value.list(); list != nullptr) {
    index += index < 0 ? std::ssize(list->items) : 0;
    return index < 0 || index >= std::ssize(list->items) ? missing()
                                                         : list->items[static_cast<size_t>(index)];
  }
  if (const Text* text = value.text(); text != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Make(text->size()));
    const std::vector<size_t> starts = CharacterStarts(text->str());
    index += index < 0 ? std::ssize(starts) - 1 : 0;
    return index < 0 || index + 1 >= std::ssize(starts)
               ? missing()
               : Value(text->Part(starts[static_cast<size_t>(index)],
                                  starts[static_cast<size_t>(index) + 1]));
  }
  return missing();
}

absl::StatusOr<Value> Slice(const Value& value, const Value& begin, const Value& end,
                            const Value& step, Budget& budget) {
  for (const Value* index : {&begin, &end, &step}) {
    if (!index->none() && !index->IsInteger()) {
      return InvalidArgument("{} is no index of a slice", index->TypeName());
    }
  }
  const int64_t by = step.none() ? 1 : std::clamp<int64_t>(step.integer(), -INT32_MAX, INT32_MAX);
  if (by == 0) {
    return InvalidArgument("a slice has step 0");
  }
  if (value.text() == nullptr && value.list() == nullptr) {
    return NotFor("[:]", value, begin);
  }
  const std::vector<size_t> starts =
      value.text() != nullptr ? CharacterStarts(value.text()->str()) : std::vector<size_t>();
  const int64_t size =
      value.text() != nullptr ? std::ssize(starts) - 1 : std::ssize(value.list()->items);
  SHOAL_RETURN_IF_ERROR(value.text() != nullptr ? budget.Make(value.text()->size())
                                                : budget.Spend(size));
  const int64_t first = Clamped(begin, size, by > 0, true);
  const int64_t last = Clamped(end, size, by > 0, false);
  Text text;
  std::vector<Value> items;
  for (int64_t at = first; by > 0 ? at < last : at > last; at += by) {
    const auto index = static_cast<size_t>(at);
    if (value.text() != nullptr) {
      text.AppendPart(*value.text(), starts[index], starts[index + 1]);
    } else {
      items.push_back(value.list()->items[index]);
    }
  }
  return value.text() != nullptr ? absl::StatusOr<Value>(Value(std::move(text)))
                                 : MakeList(std::move(items), value.list()->tuple);
}

absl::StatusOr<std::vector<Value>> Elements(const Value& value, Budget& budget) {
  std::vector<Value> elements;
  if (const List* list = value.list(); list != nullptr) {
    elements = list->items;
  } else if (const Dict* dict = value.dict(); dict != nullptr) {
    for (const auto& item : dict->items) {
      elements.emplace_back(item.first);
    }
  } else if (const Text* text = value.text(); text != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Make(text->size() * kPartBytes));
    const std::vector<size_t> starts = CharacterStarts(text->str());
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      elements.emplace_back(text->Part(starts[i], starts[i + 1]));
    }
  } else if (!value.undefined()) {
    return InvalidArgument("{} has no elements to go through", value.TypeName());
  }
  SHOAL_RETURN_IF_ERROR(budget.Spend(std::ssize(elements)));
  return elements;
}

absl::StatusOr<int64_t> Length(const Value& value) {
  if (value.text() != nullptr) {
    return CountCharacters(value.text()->str());
  }
  if (value.list() != nullptr) {
    return std::ssize(value.list()->items);
  }
  if (value.dict() != nullptr) {
    return std::ssize(value.dict()->items);
  }
  return value.undefined() ? absl::StatusOr<int64_t>(0)
                           : InvalidArgument("{} has no length", value.TypeName());
}

}  // namespace shoal::jinja
