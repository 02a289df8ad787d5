// The one YAML document of a job file. Internal to plan/job_*.cc.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "yaml-cpp/yaml.h"

namespace shoal::plan {

// Null where the file is empty. InvalidArgument for what is not UTF-8 (it would not be written back
// as it was read) and for more than one document; throws YAML::Exception for what is not YAML.
absl::StatusOr<YAML::Node> LoadJobDocument(std::string_view text, const std::string& file_name);

}  // namespace shoal::plan
