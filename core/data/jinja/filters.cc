#include "core/data/jinja/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/base/status.h"
#include "core/data/jinja/characters.h"
#include "core/data/jinja/operators.h"
#include "core/data/jinja/printing.h"

namespace shoal::jinja {
namespace {

using Filter = absl::StatusOr<Value> (*)(const Value&, const Arguments&, Budget&);

template <Case to>
absl::StatusOr<Value> CaseFilter(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "a filter for letters", {}).status());
  SHOAL_ASSIGN_OR_RETURN(const Text text, ToText(value, budget));
  SHOAL_ASSIGN_OR_RETURN(Text changed, ChangeCase(text, to, budget));
  return Value(std::move(changed));
}

absl::StatusOr<Value> Abs(const Value& value, const Arguments& arguments, Budget&) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "abs", {}).status());
  if (!value.IsNumber()) {
    return InvalidArgument("abs takes a number, not {}", value.TypeName());
  }
  if (value.IsInteger() && value.integer() != INT64_MIN) {
    return Value(std::abs(value.integer()));
  }
  return Value(std::abs(value.number()));
}

absl::StatusOr<Value> Default(const Value& value, const Arguments& arguments, Budget&) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::To(arguments, "default", {"default_value", "boolean"}));
  if (!value.undefined() && (!bound.IsTrue(1) || value.IsTrue())) {
    return value;
  }
  return bound[0] != nullptr ? *bound[0] : Value(Text());
}

absl::StatusOr<Value> DictSort(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::To(arguments, "dictsort", {"case_sensitive", "by", "reverse"}));
  SHOAL_ASSIGN_OR_RETURN(const std::string_view by, bound.TextOr(1, "key"));
  SHOAL_ASSIGN_OR_RETURN(const Value pairs,
                         CallMethod({.self = value, .name = "items"}, {}, budget));
  Arguments sort;
  sort.named = {{"case_sensitive", Value(bound.IsTrue(0))},
                {"reverse", Value(bound.IsTrue(2))},
                {"attribute", Value(static_cast<int64_t>(by == "value" ? 1 : 0))}};
  return CallListFilter("sort", pairs, sort, budget);
}

bool IsDigit(char c, int64_t base) {
  return (c >= '0' && c <= '9') || (base > 10 && (c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

// A number's text as from_chars reads it: Python also takes a plus, and _ between digits.
std::string Plain(std::string_view text, int64_t base) {
  std::string plain;
  for (size_t i = text.size() > 1 && text[0] == '+' && text[1] != '-' ? 1 : 0; i < text.size();
       ++i) {
    const bool within = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                        IsDigit(text[i - 1], base) && IsDigit(text[i + 1], base);
    plain += within ? "" : text.substr(i, 1);
  }
  return plain;
}

absl::StatusOr<Value> Float(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "float", {"default"}));
  if (value.IsNumber()) {
    return Value(value.number());
  }
  if (value.text() != nullptr) {
    SHOAL_RETURN_IF_ERROR(budget.Walk(value.text()->size()));
    SHOAL_ASSIGN_OR_RETURN(const Text text,
                           Strip(*value.text(), Side::kBoth, std::nullopt, budget));
    SHOAL_RETURN_IF_ERROR(budget.Make(text.size()));
    const std::string plain = Plain(text.str(), 10);
    const char* end = plain.data() + plain.size();
    double number = 0;
    const auto result = std::from_chars(plain.data(), end, number);
    if (result.ec == std::errc() && result.ptr == end) {
      return Value(number);
    }
  }
  return bound[0] != nullptr ? *bound[0] : Value(0.0);
}

absl::StatusOr<Value> Int(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "int", {"default", "base"}));
  SHOAL_ASSIGN_OR_RETURN(const int64_t base, bound.IntegerOr(1, 10));
  if (value.IsInteger()) {
    return Value(value.integer());
  }
  if (value.text() != nullptr && base >= 2 && base <= 36) {
    SHOAL_RETURN_IF_ERROR(budget.Walk(value.text()->size()));
    SHOAL_ASSIGN_OR_RETURN(const Text text,
                           Strip(*value.text(), Side::kBoth, std::nullopt, budget));
    SHOAL_RETURN_IF_ERROR(budget.Make(text.size()));
    const std::string plain = Plain(text.str(), base);
    const char* end = plain.data() + plain.size();
    int64_t number = 0;
    const auto result = std::from_chars(plain.data(), end, number, static_cast<int>(base));
    if (result.ec == std::errc() && result.ptr == end) {
      return Value(number);
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const Value number, Float(value, {.positional = {Value(NAN)}}, budget));
  if (std::abs(number.number()) < 9e18) {
    return Value(static_cast<int64_t>(number.number()));
  }
  return bound[0] != nullptr ? *bound[0] : Value(int64_t{0});
}

absl::StatusOr<Value> Items(const Value& value, const Arguments& arguments, Budget& budget) {
  return value.undefined() ? MakeList({})
                           : CallMethod({.self = value, .name = "items"}, arguments, budget);
}

absl::StatusOr<Value> LengthOf(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "length", {}).status());
  SHOAL_ASSIGN_OR_RETURN(const int64_t length, Length(value, budget));
  return Value(length);
}

absl::StatusOr<Value> ReplaceIn(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(Text text, ToText(value, budget));
  return CallMethod({.self = Value(std::move(text)), .name = "replace"}, arguments, budget);
}

absl::StatusOr<Value> Reverse(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "reverse", {}).status());
  const Value none(None{});
  if (value.text() != nullptr || value.list() != nullptr) {
    return Slice(value, none, none, Value(int64_t{-1}), budget);
  }
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> elements, Elements(value, budget));
  std::reverse(elements.begin(), elements.end());
  return MakeList(std::move(elements));
}

constexpr size_t kRoundSteps = 64;  // large numbers have 300 digits to write and to read

// To the nearest by all its digits, as Python does: 2.675 is a little less than it looks.
double Rounded(double number, int64_t precision) {
  if (precision >= 0) {
    constexpr int64_t kAllDigits = 330;  // no double has more that count
    const std::string digits = fmt::format("{:.{}f}", number, std::min(precision, kAllDigits));
    double rounded = number;
    std::from_chars(digits.data(), digits.data() + digits.size(), rounded);
    return rounded;
  }
  const double unit = std::pow(10.0, static_cast<double>(std::min<int64_t>(-precision, 300)));
  return std::nearbyint(number / unit) * unit;
}

absl::StatusOr<Value> RoundedInteger(int64_t number, int64_t precision) {
  constexpr int64_t kDigits = 18;  // of which each int64_t has room
  if (precision >= 0) {
    return Value(number);
  }
  if (precision < -kDigits) {
    return Value(int64_t{0});
  }
  int64_t unit = 1;
  for (int64_t i = precision; i < 0; ++i) {
    unit *= 10;
  }
  const int64_t rest = number % unit;
  const int64_t half = unit / 2;
  const bool odd = number / unit % 2 != 0;
  const int64_t away = std::abs(rest) > half || (std::abs(rest) == half && odd) ? unit : 0;
  int64_t rounded = number - rest;
  return __builtin_add_overflow(rounded, number < 0 ? -away : away, &rounded)
             ? absl::StatusOr<Value>(InvalidArgument("{} is too large to round", number))
             : Value(rounded);
}

absl::StatusOr<Value> Round(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(const Bound bound, Bound::To(arguments, "round", {"precision", "method"}));
  SHOAL_ASSIGN_OR_RETURN(const int64_t precision, bound.IntegerOr(0, 0));
  SHOAL_ASSIGN_OR_RETURN(const std::string_view method, bound.TextOr(1, "common"));
  if (!value.IsNumber()) {
    return InvalidArgument("round takes a number, not {}", value.TypeName());
  }
  if (method != "common" && method != "ceil" && method != "floor") {
    return InvalidArgument("the method of round is common, ceil or floor");
  }
  if (method == "common") {
    SHOAL_RETURN_IF_ERROR(budget.Spend(kRoundSteps));
    return value.IsInteger() ? RoundedInteger(value.integer(), precision)
                             : Value(Rounded(value.number(), precision));
  }
  const double scale =
      std::pow(10.0, static_cast<double>(std::clamp<int64_t>(precision, -300, 300)));
  const double scaled = value.number() * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

absl::StatusOr<Value> Same(const Value& value, const Arguments& arguments, Budget&) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "safe", {}).status());
  return value;
}

absl::StatusOr<Value> String(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(Bound::To(arguments, "string", {}).status());
  SHOAL_ASSIGN_OR_RETURN(Text text, ToText(value, budget));
  return Value(std::move(text));
}

absl::StatusOr<Value> ToJsonFilter(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::To(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style{.ascii = bound.IsTrue(0), .sort_keys = bound.IsTrue(3)};
  SHOAL_ASSIGN_OR_RETURN(const int64_t indent, bound.IntegerOr(1, -1));
  style.indent = static_cast<int>(std::clamp<int64_t>(indent, -1, 64));
  if (bound[2] != nullptr && !bound[2]->none()) {
    const List* pair = bound[2]->list();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      return InvalidArgument("separators of tojson are a pair of texts");
    }
    SHOAL_RETURN_IF_ERROR(
        budget.Make(pair->items[0].text()->size() + pair->items[1].text()->size()));
    style.item_separator = pair->items[0].text()->str();
    style.key_separator = pair->items[1].text()->str();
  } else if (style.indent >= 0) {
    style.item_separator = ",";
  }
  SHOAL_ASSIGN_OR_RETURN(Text json, ToJson(value, style, budget));
  return Value(std::move(json));
}

absl::StatusOr<Value> Trim(const Value& value, const Arguments& arguments, Budget& budget) {
  SHOAL_ASSIGN_OR_RETURN(Text text, ToText(value, budget));
  return CallMethod({.self = Value(std::move(text)), .name = "strip"}, arguments, budget);
}

constexpr std::array<std::pair<std::string_view, Filter>, 20> kFilters = {{
    {"abs", Abs},
    {"capitalize", CaseFilter<Case::kCapitalize>},
    {"count", LengthOf},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"float", Float},
    {"int", Int},
    {"items", Items},
    {"length", LengthOf},
    {"lower", CaseFilter<Case::kLower>},
    {"replace", ReplaceIn},
    {"reverse", Reverse},
    {"round", Round},
    {"safe", Same},
    {"string", String},
    {"title", CaseFilter<Case::kWords>},
    {"tojson", ToJsonFilter},
    {"trim", Trim},
    {"upper", CaseFilter<Case::kUpper>},
}};

}  // namespace

absl::StatusOr<Value> CallFilter(std::string_view name, const Value& value,
                                 const Arguments& arguments, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Spend(1 + arguments.named.size()));
  const auto found = std::find_if(kFilters.begin(), kFilters.end(),
                                  [name](const auto& entry) { return entry.first == name; });
  if (found != kFilters.end()) {
    return found->second(value, arguments, budget);
  }
  if (IsListFilter(name)) {
    return CallListFilter(name, value, arguments, budget);
  }
  return InvalidArgument("filter '{}' is not supported", OneLine(name, kMaxShown));
}

}  // namespace shoal::jinja
