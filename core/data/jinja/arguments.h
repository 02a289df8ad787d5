// Arguments of a call of a filter, test, function, method or macro.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/jinja/value.h"

namespace shoal::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// What of `names` an Arguments has, by position or by name. Valid as long as they are.
class Bound {
 public:
  // InvalidArgument names `callee` where there are other arguments, or less than `required`.
  static absl::StatusOr<Bound> To(const Arguments& arguments, std::string_view callee,
                                  std::initializer_list<std::string_view> names,
                                  size_t required = 0);

  // Null where it is not given.
  const Value* operator[](size_t index) const { return values_[index]; }
  bool IsTrue(size_t index) const { return values_[index] != nullptr && values_[index]->IsTrue(); }
  absl::StatusOr<int64_t> IntegerOr(size_t index, int64_t fallback) const;
  absl::StatusOr<std::string_view> TextOr(size_t index, std::string_view fallback) const;

 private:
  std::string_view callee_;
  std::vector<const Value*> values_;
};

}  // namespace shoal::jinja
