// Operators of expressions over values, as Python has them.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "core/data/jinja/budget.h"
#include "core/data/jinja/value.h"

namespace shoal::jinja {

// `name` is +, -, *, /, //, %, ** or ~.
absl::StatusOr<Value> Binary(std::string_view name, const Value& left, const Value& right,
                             Budget& budget);
absl::StatusOr<bool> Equal(const Value& left, const Value& right, Budget& budget);
// -1, 0 or 1, of numbers, texts and lists of them.
absl::StatusOr<int> Order(const Value& left, const Value& right, Budget& budget);
// `name` is ==, !=, <, <=, >, >=, in or not in.
absl::StatusOr<bool> Compare(std::string_view name, const Value& left, const Value& right,
                             Budget& budget);
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget& budget);

// What value[key] is; undefined where there is none.
absl::StatusOr<Value> Item(const Value& value, const Value& key, Budget& budget);
absl::StatusOr<Value> Slice(const Value& value, const Value& begin, const Value& end,
                            const Value& step, Budget& budget);
// What a `for` goes through: elements, keys, or characters. InvalidArgument of what has none.
absl::StatusOr<std::vector<Value>> Elements(const Value& value, Budget& budget);
absl::StatusOr<int64_t> Length(const Value& value);

}  // namespace shoal::jinja
