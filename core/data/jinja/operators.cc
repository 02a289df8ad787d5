#include "core/data/jinja/operators.h"

#include <algorithm>
#include <bit>
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
  SHOAL_RETURN_IF_ERROR(budget.Make(text.memory() + more.memory()));
  text.Append(more);
  return Value(std::move(text));
}

absl::StatusOr<Value> Repeated(const Value& value, int64_t times, Budget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes));
  if (const Text* text = value.text(); text != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Make(text->memory(), count));
    Text all;
    for (size_t i = 0; i < count && !text->empty(); ++i) {
      all.Append(*text);
    }
    return Value(std::move(all));
  }
  const std::vector<Value>& items = value.list()->items;
  SHOAL_RETURN_IF_ERROR(budget.Make(sizeof(Value) * items.size(), count));
  SHOAL_RETURN_IF_ERROR(budget.Spend(items.size() * count));
  std::vector<Value> all;
  for (size_t i = 0; i < count && !items.empty(); ++i) {
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

absl::StatusOr<Value> SliceOfText(const Text& text, const Value& begin, const Value& end,
                                  int64_t by, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Read(text.size()));
  const int64_t size = CountCharacters(text.str());
  const int64_t last = Clamped(end, size, by > 0, false);
  SHOAL_RETURN_IF_ERROR(budget.Walk(text.size()));
  SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes + text.memory()));
  Text slice;
  int64_t index = Clamped(begin, size, by > 0, true);
  size_t at = Advance(text.str(), 0, index);
  if (by == 1) {
    return Value(text.Part(at, Advance(text.str(), at, std::max<int64_t>(last - index, 0))));
  }
  for (; by > 0 ? index < last : index > last; index += by) {
    slice.AppendPart(text, at, Advance(text.str(), at, 1));
    at = Advance(text.str(), at, by);
  }
  return Value(std::move(slice));
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
        ChargeItems(left.list()->items.size() + right.list()->items.size(), budget));
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
    if (left.text()->size() != right.text()->size()) {
      return false;
    }
    SHOAL_RETURN_IF_ERROR(budget.Read(left.text()->size()));
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
      if (!equal) {
        break;
      }
      SHOAL_ASSIGN_OR_RETURN(const Value* other, Find(*right.dict(), key.str(), budget));
      if (other == nullptr) {
        return false;
      }
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
    SHOAL_RETURN_IF_ERROR(budget.Read(std::min(left.text()->size(), right.text()->size())));
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
    SHOAL_RETURN_IF_ERROR(budget.Read(text->size() + item.text()->size()));
    return FindIn(text->str(), item.text()->str()) != std::string::npos;
  }
  if (const Dict* dict = container.dict(); dict != nullptr) {
    if (item.text() == nullptr) {
      return false;
    }
    SHOAL_ASSIGN_OR_RETURN(const Value* found, Find(*dict, item.text()->str(), budget));
    return found != nullptr;
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

absl::StatusOr<size_t> Position(const std::vector<std::pair<Text, Value>>& items,
                                std::string_view key, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Spend(items.size() / 16));
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].first.size() != key.size()) {
      continue;
    }
    SHOAL_RETURN_IF_ERROR(budget.Read(key.size()));
    if (items[i].first.str() == key) {
      return i;
    }
  }
  return items.size();
}

absl::StatusOr<const Value*> Find(const Dict& dict, std::string_view key, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const size_t at, Position(dict.items, key, budget));
  return at == dict.items.size() ? nullptr : &dict.items[at].second;
}

absl::Status ChargeLook(const Namespace& space, std::string_view name, Budget& budget) {
  const auto looks = static_cast<size_t>(std::bit_width(space.size()));
  return budget.Spend(looks * (1 + name.size() / 64));
}

absl::StatusOr<Value> Item(const Value& value, const Value& key, Budget& budget) {
  const auto missing = [&] {
    return key.text() != nullptr ? Value(Undefined(key.text()->str()))
           : key.IsInteger()     ? Value(Undefined(fmt::format("[{}]", key.integer())))
                                 : Value(Undefined(key.TypeName()));
  };
  if (value.undefined()) {
    return NotFor("[]", value, key);
  }
  if (value.dict() != nullptr) {
    const Value* found = nullptr;
    if (key.text() != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(found, Find(*value.dict(), key.text()->str(), budget));
    }
    return found == nullptr ? missing() : *found;
  }
  if (const auto* space = value.As<Namespace*>(); space != nullptr && key.text() != nullptr) {
    SHOAL_RETURN_IF_ERROR(ChargeLook(**space, key.text()->str(), budget));
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
    if (index < 0) {
      SHOAL_RETURN_IF_ERROR(budget.Read(text->size()));
      index += CountCharacters(text->str());
    }
    if (index < 0 || index >= std::ssize(text->str())) {  // a character has a byte at least
      return missing();
    }
    SHOAL_RETURN_IF_ERROR(budget.Walk(std::min(text->size(), 4 * static_cast<size_t>(index))));
    SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes));
    const size_t begin = Advance(text->str(), 0, index);
    return begin == text->size() ? missing()
                                 : Value(text->Part(begin, Advance(text->str(), begin, 1)));
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
  if (value.text() != nullptr) {
    return SliceOfText(*value.text(), begin, end, by, budget);
  }
  const std::vector<Value>& all = value.list()->items;
  const int64_t first = Clamped(begin, std::ssize(all), by > 0, true);
  const int64_t last = Clamped(end, std::ssize(all), by > 0, false);
  const int64_t distance = std::max<int64_t>(by > 0 ? last - first : first - last, 0);
  SHOAL_RETURN_IF_ERROR(ChargeItems(static_cast<size_t>(distance), budget));
  std::vector<Value> items;
  for (int64_t at = first; by > 0 ? at < last : at > last; at += by) {
    items.push_back(all[static_cast<size_t>(at)]);
  }
  return MakeList(std::move(items), value.list()->tuple);
}

absl::StatusOr<std::vector<Value>> Elements(const Value& value, Budget& budget) {
  std::vector<Value> elements;
  if (const List* list = value.list(); list != nullptr) {
    SHOAL_RETURN_IF_ERROR(ChargeItems(list->items.size(), budget));
    elements = list->items;
  } else if (const Dict* dict = value.dict(); dict != nullptr) {
    SHOAL_RETURN_IF_ERROR(ChargeItems(dict->items.size(), budget));
    for (const auto& item : dict->items) {
      SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes + item.first.memory()));
      elements.emplace_back(item.first);
    }
  } else if (const Text* text = value.text(); text != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Read(text->size()));
    const auto count = static_cast<size_t>(CountCharacters(text->str()));
    SHOAL_RETURN_IF_ERROR(ChargeItems(count, budget));
    SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes, count));
    for (size_t at = 0; at < text->size();) {
      const size_t begin = std::exchange(at, Advance(text->str(), at, 1));
      elements.emplace_back(text->Part(begin, at));
    }
  } else if (!value.undefined()) {
    return InvalidArgument("{} has no elements to go through", value.TypeName());
  }
  return elements;
}

absl::StatusOr<int64_t> Length(const Value& value, Budget& budget) {
  if (value.text() != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Read(value.text()->size()));
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
