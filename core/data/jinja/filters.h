// Filters, tests and methods that a template may call by name.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "core/data/jinja/arguments.h"
#include "core/data/jinja/budget.h"
#include "core/data/jinja/value.h"

namespace shoal::jinja {

// value | name(arguments)
absl::StatusOr<Value> CallFilter(std::string_view name, const Value& value,
                                 const Arguments& arguments, Budget& budget);

// Filters over the elements of a list: join, map, select, sort and their kin.
bool IsListFilter(std::string_view name);
absl::StatusOr<Value> CallListFilter(std::string_view name, const Value& value,
                                     const Arguments& arguments, Budget& budget);

// value is name(arguments)
absl::StatusOr<bool> CallTest(std::string_view name, const Value& value, const Arguments& arguments,
                              Budget& budget);

// Whether value.name is a function, as 'text'.split is.
bool HasMethod(const Value& value, std::string_view name);
absl::StatusOr<Value> CallMethod(const Method& method, const Arguments& arguments, Budget& budget);

}  // namespace shoal::jinja
