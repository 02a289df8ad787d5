#include <algorithm>
#include <array>
#include <bit>

#include "core/base/status.h"
#include "core/data/jinja/characters.h"
#include "core/data/jinja/filters.h"
#include "core/data/jinja/operators.h"
#include "core/data/jinja/printing.h"

namespace shoal::jinja {
namespace {

using ListFilter = absl::StatusOr<Value> (*)(const Value&, const Arguments&, Budget&);

// The attribute 'a.0.b' of an element; the element itself where there is none.
absl::StatusOr<Value> AttributeOf(const Value& element, const Value* attribute, Budget& budget) {
  if (attribute == nullptr || attribute->none()) {
    return element;
  }
  if (attribute->text() == nullptr) {
    return Item(element, *attribute, budget);
  }
  Value value = element;
  SHOAL_ASSIGN_OR_RETURN(const auto parts, Split(*attribute->text(), ".", -1, budget));
  for (const Text& part : parts) {
    const bool number = !part.empty() && part.size() < 10 &&
                        part.str().find_first_not_of("0123456789") == std::string::npos;
    const Value key = number ? Value(static_cast<int64_t>(std::stoll(part.str()))) : Value(part);
    SHOAL_ASSIGN_OR_RETURN(value, Item(value, key, budget));
  }
  return value;
}

// What is compared by where letters' case does not count.
absl::StatusOr<Value> Folded(const Value& value, bool case_sensitive, Budget& budget) {
  if (value.text() == nullptr || case_sensitive) {
    return value;
  }
  SHOAL_ASSIGN_OR_RETURN(Text folded, ChangeCase(*value.text(), Case::kLower, budget));
  return Value(std::move(folded));
}

absl::StatusOr<Value> End(const Value& value, bool first, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(value, budget));
  return elements.empty() ? Value(Undefined{first ? "first of none" : "last of none"})
         : first          ? elements.front()
                          : elements.back();
}

absl::StatusOr<Value> First(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "first", {}).status());
  return End(value, true, budget);
}

absl::StatusOr<Value> Last(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "last", {}).status());
  return End(value, false, budget);
}

absl::StatusOr<Value> AsList(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "list", {}).status());
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> elements, Elements(value, budget));
  return MakeList(std::move(elements));
}

absl::StatusOr<Value> Join(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "join", {"d", "attribute"}));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(value, budget));
  Text separator;
  if (bound[0] != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(separator, ToText(*bound[0], budget));
  }
  Text joined;
  for (size_t i = 0; i < elements.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const Value part, AttributeOf(elements[i], bound[1], budget));
    SHOAL_ASSIGN_OR_RETURN(const Text text, ToText(part, budget));
    SHOAL_RETURN_IF_ERROR(budget.Make(separator.memory() + text.memory()));
    joined.Append(i == 0 ? Text() : separator);
    joined.Append(text);
  }
  return Value(std::move(joined));
}

// The arguments behind the first `count`, for the filter or test that the one before them names.
absl::StatusOr<std::pair<std::string, Arguments>> Callee(std::string_view filter,
                                                         const Arguments& arguments, size_t at,
                                                         Budget& budget) {
  if (arguments.positional.size() <= at || arguments.positional[at].text() == nullptr) {
    return InvalidArgument("{} needs the name of what it calls", filter);
  }
  SHOAL_RETURN_IF_ERROR(
      ChargeItems(arguments.positional.size() + 2 * arguments.named.size(), budget));
  SHOAL_RETURN_IF_ERROR(budget.Make(arguments.positional[at].text()->size()));
  Arguments rest{.positional = {}, .named = arguments.named};
  rest.positional.assign(arguments.positional.begin() + static_cast<int64_t>(at) + 1,
                         arguments.positional.end());
  return std::pair(arguments.positional[at].text()->str(), std::move(rest));
}

// NOLINTNEXTLINE(misc-no-recursion): no other filter calls filters, and it may not call itself
absl::StatusOr<Value> Map(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(value, budget));
  SHOAL_RETURN_IF_ERROR(ChargeItems(elements.size(), budget));
  std::vector<Value> mapped;
  const bool attribute = arguments.positional.empty() && !arguments.named.empty();
  if (attribute) {
    SHOAL_ASSIGN_OR_RETURN(const Bound bound,
                           Bound::To(arguments, "map", {"attribute", "default"}, 1));
    for (const Value& element : elements) {
      SHOAL_ASSIGN_OR_RETURN(Value part, AttributeOf(element, bound[0], budget));
      mapped.push_back(part.undefined() && bound[1] != nullptr ? *bound[1] : std::move(part));
    }
    return MakeList(std::move(mapped));
  }
  SHOAL_ASSIGN_OR_RETURN(const auto callee, Callee("map", arguments, 0, budget));
  if (callee.first == "map") {
    return InvalidArgument("map cannot call map");
  }
  for (const Value& element : elements) {
    SHOAL_ASSIGN_OR_RETURN(mapped.emplace_back(),
                           CallFilter(callee.first, element, callee.second, budget));
  }
  return MakeList(std::move(mapped));
}

// Keeps elements for which a test, of them or of an attribute, is as `wanted`; without a test,
// whether they are true.
template <bool wanted, bool by_attribute>
absl::StatusOr<Value> Select(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(value, budget));
  const std::string_view name = by_attribute ? "selectattr" : "select";
  if (by_attribute && arguments.positional.empty()) {
    return InvalidArgument("{} needs the name of an attribute", name);
  }
  std::pair<std::string, Arguments> test;
  if (arguments.positional.size() > (by_attribute ? 1 : 0)) {
    SHOAL_ASSIGN_OR_RETURN(test, Callee(name, arguments, by_attribute ? 1 : 0, budget));
  }
  SHOAL_RETURN_IF_ERROR(ChargeItems(elements.size(), budget));
  std::vector<Value> kept;
  for (const Value& element : elements) {
    SHOAL_ASSIGN_OR_RETURN(
        const Value part,
        AttributeOf(element, by_attribute ? &arguments.positional[0] : nullptr, budget));
    bool is = part.IsTrue();
    if (!test.first.empty()) {
      SHOAL_ASSIGN_OR_RETURN(is, CallTest(test.first, part, test.second, budget));
    }
    if (is == wanted) {
      kept.push_back(element);
    }
  }
  return MakeList(std::move(kept));
}

// A merge sort, since orders may fail half way.
absl::Status SortKeyed(std::vector<std::pair<Value, Value>>& keyed, bool reverse, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(
      budget.Spend(keyed.size() * static_cast<size_t>(std::bit_width(keyed.size()))));
  SHOAL_RETURN_IF_ERROR(ChargeItems(2 * keyed.size(), budget));
  std::vector<std::pair<Value, Value>> merged;
  for (size_t width = 1; width < keyed.size(); width *= 2) {
    merged.clear();
    for (size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keyed.size());
      const size_t end = std::min(begin + 2 * width, keyed.size());
      size_t left = begin;
      size_t right = middle;
      while (left < middle || right < end) {
        bool take_left = right == end;
        if (left < middle && right < end) {
          SHOAL_ASSIGN_OR_RETURN(const int order,
                                 Order(keyed[left].first, keyed[right].first, budget));
          take_left = reverse ? order >= 0 : order <= 0;
        }
        merged.push_back(std::move(keyed[take_left ? left++ : right++]));
      }
    }
    keyed.swap(merged);
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Sort(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::To(arguments, "sort", {"reverse", "case_sensitive", "attribute"}));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(value, budget));
  SHOAL_RETURN_IF_ERROR(ChargeItems(3 * elements.size(), budget));
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& element : elements) {
    SHOAL_ASSIGN_OR_RETURN(const Value key, AttributeOf(element, bound[2], budget));
    SHOAL_ASSIGN_OR_RETURN(Value folded, Folded(key, bound.IsTrue(1), budget));
    keyed.emplace_back(std::move(folded), element);
  }
  SHOAL_RETURN_IF_ERROR(SortKeyed(keyed, bound.IsTrue(0), budget));
  std::vector<Value> sorted;
  for (auto& entry : keyed) {
    sorted.push_back(std::move(entry.second));
  }
  return MakeList(std::move(sorted));
}

absl::StatusOr<Value> Unique(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::To(arguments, "unique", {"case_sensitive", "attribute"}));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> elements, Elements(value, budget));
  SHOAL_RETURN_IF_ERROR(ChargeItems(2 * elements.size(), budget));
  std::vector<Value> keys;
  std::vector<Value> kept;
  for (const Value& element : elements) {
    SHOAL_ASSIGN_OR_RETURN(Value key, AttributeOf(element, bound[1], budget));
    SHOAL_ASSIGN_OR_RETURN(key, Folded(key, bound.IsTrue(0), budget));
    bool known = false;
    for (size_t i = 0; i < keys.size() && !known; ++i) {
      SHOAL_ASSIGN_OR_RETURN(known, Equal(keys[i], key, budget));
    }
    if (!known) {
      keys.push_back(std::move(key));
      kept.push_back(element);
    }
  }
  return MakeList(std::move(kept));
}

constexpr std::array<std::pair<std::string_view, ListFilter>, 11> kListFilters = {{
    {"first", First},
    {"join", Join},
    {"last", Last},
    {"list", AsList},
    {"map", Map},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
    {"sort", Sort},
    {"unique", Unique},
}};

const auto* Find(std::string_view name) {
  const auto* found = std::find_if(kListFilters.begin(), kListFilters.end(),
                                   [name](const auto& entry) { return entry.first == name; });
  return found == kListFilters.end() ? nullptr : found;
}

}  // namespace

bool IsListFilter(std::string_view name) { return Find(name) != nullptr; }

absl::StatusOr<Value> CallListFilter(std::string_view name, const Value& value,
                                     const Arguments& arguments, Budget& budget) {
  return Find(name)->second(value, arguments, budget);
}

}  // namespace shoal::jinja
