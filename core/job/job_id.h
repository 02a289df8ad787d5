// Ids of jobs: the coordinator gives them at submit; every message about a job names it.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "fmt/ranges.h"

namespace shoal::plan {

// Refuses a message for a job that the receiver does not have: "job-7f3a is not here; this server
// holds job-9b02". `holds`: "this server holds".
inline absl::Status JobNotHere(const std::string& id, const char* holds,
                               std::span<const std::string> here) {
  return NotFound("{} is not here; {} {}", id.empty() ? "a job without an id" : id, holds,
                  here.empty() ? "none" : fmt::format("{}", fmt::join(here, ", ")));
}

}  // namespace shoal::plan
