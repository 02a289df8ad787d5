// The table of the job file's keys: the parser, the printer and the documentation all read it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"

namespace YAML {
class Node;
}

namespace shoal::plan {

struct JobKeyBinding {
  JobKey key;
  bool required = false;
  bool is_path = false;  // a string that names a file or folder
  // Sets the job's field. An error is what comes after "<path> ", e.g. "is 'x', expected an
  // integer".
  std::function<absl::Status(const YAML::Node& node, Job& job)> parse;
  // The value as YAML flow text; nullopt where the key is left out.
  std::function<std::optional<std::string>(const Job& job)> print;
};

const std::vector<JobKeyBinding>& JobKeyBindings();

// A double-quoted YAML scalar.
std::string QuoteYaml(const std::string& text);

}  // namespace shoal::plan
