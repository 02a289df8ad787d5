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

// Which of the items of a mapping has the key; how many there are if none.
absl::StatusOr<size_t> Position(const std::vector<std::pair<Text, Value>>& items,
                                std::string_view key, Budget& budget);
// Null where the mapping has no such key.
absl::StatusOr<const Value*> Find(const Dict& dict, std::string_view key, Budget& budget);
// Charges for a look for a name in a namespace.
absl::Status ChargeLook(const Namespace& space, std::string_view name, Budget& budget);
// What value[key] is; undefined where there is none.
absl::StatusOr<Value> Item(const Value& value, const Value& key, Budget& budget);
absl::StatusOr<Value> Slice(const Value& value, const Value& begin, const Value& end,
                            const Value& step, Budget& budget);
// What a `for` goes through: elements, keys, or characters. InvalidArgument of what has none.
absl::StatusOr<std::vector<Value>> Elements(const Value& value, Budget& budget);
absl::StatusOr<int64_t> Length(const Value& value, Budget& budget);

}  // namespace shoal::jinja
