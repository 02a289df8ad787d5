#include "core/data/jinja/value.h"

#include <algorithm>

#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/data/jinja/characters.h"

namespace shoal::jinja {
namespace {

static_assert(kMaxJsonDepth < kMaxValueDepth);

absl::Status CheckDepth(int depth) {
  return depth > kMaxValueDepth ? InvalidArgument("lists nest more than {} deep", kMaxValueDepth)
                                : absl::OkStatus();
}

struct TypeNameOf {
  std::string_view operator()(const Undefined&) const { return "undefined"; }
  std::string_view operator()(const None&) const { return "none"; }
  std::string_view operator()(bool) const { return "boolean"; }
  std::string_view operator()(int64_t) const { return "integer"; }
  std::string_view operator()(double) const { return "float"; }
  std::string_view operator()(const std::shared_ptr<const Text>&) const { return "text"; }
  std::string_view operator()(const std::shared_ptr<const List>&) const { return "list"; }
  std::string_view operator()(const std::shared_ptr<const Dict>&) const { return "mapping"; }
  std::string_view operator()(const std::shared_ptr<const Loop>&) const { return "loop"; }
  std::string_view operator()(Namespace*) const { return "namespace"; }
  std::string_view operator()(const auto&) const { return "function"; }
};

}  // namespace

Undefined::Undefined(std::string_view of) : name(OneLine(of, kMaxShown)) {}

// NOLINTNEXTLINE(misc-no-recursion): as deep as JSON is
Value Value::FromJson(const nlohmann::ordered_json& json, int32_t source) {
  const Origin origin{.source = source};
  if (json.is_string()) {
    return Value(Text(json.get<std::string>(), origin));
  }
  if (json.is_object() || json.is_array()) {
    List list;
    Dict dict;
    for (const auto& item : json.items()) {
      Value value = FromJson(item.value(), source);
      list.depth = std::max(list.depth, value.depth() + 1);
      dict.depth = list.depth;
      if (json.is_object()) {
        dict.items.emplace_back(Text(item.key(), origin), std::move(value));
      } else {
        list.items.push_back(std::move(value));
      }
    }
    return json.is_object() ? Value(std::make_shared<const Dict>(std::move(dict)))
                            : Value(std::make_shared<const List>(std::move(list)));
  }
  if (json.is_boolean()) {
    return Value(json.get<bool>());
  }
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    return Value(json.get<double>());
  }
  if (json.is_number_integer()) {
    return Value(json.get<int64_t>());
  }
  return json.is_number() ? Value(json.get<double>()) : Value(None{});
}

int64_t Value::integer() const {
  const bool* boolean = As<bool>();
  return boolean != nullptr ? static_cast<int64_t>(*boolean) : *As<int64_t>();
}

double Value::number() const {
  const double* number = As<double>();
  return number != nullptr ? *number : static_cast<double>(integer());
}

bool Value::IsTrue() const {
  if (IsNumber()) {
    return number() != 0;
  }
  if (text() != nullptr) {
    return !text()->empty();
  }
  if (list() != nullptr) {
    return !list()->items.empty();
  }
  if (dict() != nullptr) {
    return !dict()->items.empty();
  }
  return !undefined() && !none();
}

std::string_view Value::TypeName() const { return std::visit(TypeNameOf{}, variant_); }

int Value::depth() const {
  if (list() != nullptr) {
    return list()->depth;
  }
  if (dict() != nullptr) {
    return dict()->depth;
  }
  if (loop() != nullptr) {
    return loop()->items->depth + 1;
  }
  return method() != nullptr ? method()->self.depth() + 1 : 0;
}

absl::Status ChargeItems(size_t size, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Spend(size));
  SHOAL_RETURN_IF_ERROR(budget.Make(sizeof(Value), size));
  return budget.Make(kPartBytes);
}

absl::StatusOr<Value> MakeList(std::vector<Value> items, bool tuple) {
  List list{.items = std::move(items), .tuple = tuple};
  for (const Value& item : list.items) {
    list.depth = std::max(list.depth, item.depth() + 1);
  }
  SHOAL_RETURN_IF_ERROR(CheckDepth(list.depth));
  return Value(std::make_shared<const List>(std::move(list)));
}

absl::StatusOr<Value> MakeDict(std::vector<std::pair<Text, Value>> items) {
  Dict dict{.items = std::move(items)};
  for (const auto& [key, value] : dict.items) {
    dict.depth = std::max(dict.depth, value.depth() + 1);
  }
  SHOAL_RETURN_IF_ERROR(CheckDepth(dict.depth));
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

}  // namespace shoal::jinja
