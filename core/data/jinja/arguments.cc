#include "core/data/jinja/arguments.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::jinja {

absl::StatusOr<Bound> Bound::To(const Arguments& arguments, std::string_view callee,
                                std::initializer_list<std::string_view> names, size_t required) {
  Bound bound;
  bound.callee_ = callee;
  bound.values_.resize(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    return InvalidArgument("{} takes at most {} arguments, and is given {}", callee, names.size(),
                           arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return InvalidArgument("{} has no argument '{}'", callee, name);
    }
    bound.values_[static_cast<size_t>(found - names.begin())] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound.values_[i] == nullptr) {
      return InvalidArgument("{} needs an argument '{}'", callee, *(names.begin() + i));
    }
  }
  return bound;
}

absl::StatusOr<int64_t> Bound::IntegerOr(size_t index, int64_t fallback) const {
  const Value* value = values_[index];
  if (value == nullptr || value->none()) {
    return fallback;
  }
  return value->IsInteger()
             ? absl::StatusOr<int64_t>(value->integer())
             : InvalidArgument("{} takes an integer, not {}", callee_, value->TypeName());
}

absl::StatusOr<std::string_view> Bound::TextOr(size_t index, std::string_view fallback) const {
  const Value* value = values_[index];
  if (value == nullptr || value->none()) {
    return fallback;
  }
  return value->text() != nullptr
             ? absl::StatusOr<std::string_view>(value->text()->str())
             : InvalidArgument("{} takes a text, not {}", callee_, value->TypeName());
}

}  // namespace shoal::jinja
