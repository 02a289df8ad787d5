// Runs another program and takes what it prints. The program lives in a process group of its own,
// which is killed when its time is up, when this object goes, and by the kernel when the thread
// that started it ends.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/file.h"

namespace shoal::transport {

class RunningProgram {
 public:
  // The first argument is the program, looked for on PATH unless it is a path. NotFound if it
  // cannot be run. `environment` is added to this process's own.
  static absl::StatusOr<RunningProgram> Start(
      const std::vector<std::string>& arguments,
      const std::map<std::string, std::string>& environment = {});
  RunningProgram(RunningProgram&& other) noexcept;
  RunningProgram& operator=(RunningProgram&& other) noexcept;
  ~RunningProgram();

  bool Running() const;

  // What it printed until it ended. An error, with the last line that it printed, if it
  // failed or did not end in time; it runs no more either way.
  absl::StatusOr<std::string> Finish(absl::Duration limit);

 private:
  RunningProgram(std::string name, pid_t pid, UniqueFd output)
      : name_(std::move(name)), pid_(pid), output_(std::move(output)) {}
  void Kill();

  std::string name_;
  pid_t pid_ = -1;   // -1: ended and reaped
  UniqueFd output_;  // its stdout and stderr
};

// Both in one go.
absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& arguments,
                                       absl::Duration limit,
                                       const std::map<std::string, std::string>& environment = {});

// Whether a program of that name is on PATH.
bool ProgramExists(const std::string& name);

// A tcp port of loopback that nobody listens on now.
absl::StatusOr<int> FreePort();

}  // namespace shoal::transport
