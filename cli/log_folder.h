// The logs of a local run's processes, as one: <checkpoint directory>/logs/*.log.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::cli {

struct LoggedLine {
  std::string time;  // "2026-11-25 20:26:01.123"
  std::string level;
  std::string process;
  std::string message;
};
// Of a line as core/base/logging.h has it. One that is none (of a library, or the end of a longer
// one) is all message, of the process whose log it is.
LoggedLine ParseLogLine(std::string_view line, std::string_view process);

class LogFolder {
 public:
  explicit LogFolder(std::string path) : path_(std::move(path)) {}
  // Returns what was written since the last call, at first of each file its end, in order of time.
  // NotFound where there never was a log: a run that is done removes them.
  absl::StatusOr<std::vector<LoggedLine>> Read();

 private:
  const std::string path_;
  std::map<std::string, int64_t> offsets_;  // by file
};

}  // namespace shoal::cli
