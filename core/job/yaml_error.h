// Says what is wrong with a file that is not YAML.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "yaml-cpp/exceptions.h"

namespace shoal::plan {

// Names and quotes the line to mend: that of a tab that indents, or of the bracket that is never
// closed, of which yaml-cpp notices lines later; else the line where it stopped.
absl::Status YamlError(const std::string& file_name, std::string_view yaml,
                       const YAML::Exception& error);

}  // namespace shoal::plan
