// Values as text: as a template prints them (Python's str), as Python writes them within lists
// (repr), and as JSON.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/data/jinja/budget.h"
#include "core/data/jinja/value.h"

namespace shoal::jinja {

absl::StatusOr<Text> ToText(const Value& value, Budget& budget);

struct JsonStyle {
  int indent = -1;  // spaces a level; negative: one line
  bool ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace shoal::jinja
