// config.json as a folder of weights is read by it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/model/model_spec.h"

namespace shoal::formats {

struct HfConfig {
  plan::ModelSpec spec;
  bool composite = false;  // it describes a model of several parts; `spec` is the text's
};
absl::StatusOr<HfConfig> ParseConfig(const std::string& json, const std::string& file_name);
absl::StatusOr<HfConfig> ReadConfig(const std::string& folder);

}  // namespace shoal::formats
