// Parses a template: statements here, expressions in expression_parser.h.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "core/data/jinja/tree.h"

namespace shoal::jinja {

struct ParsedTemplate {
  Block body;
  bool has_generation = false;  // {% generation %} stands somewhere in it
};

// InvalidArgument is "NAME:LINE: ...".
absl::StatusOr<ParsedTemplate> ParseTemplate(std::string_view source, std::string_view name);

}  // namespace shoal::jinja
