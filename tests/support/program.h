// Runs a program as a test sees it: arguments in, exit code and output back, never longer than a
// deadline.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/process/subprocess.h"

namespace shoal::testing {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when killed by one; 127 where it could not be run
  bool timed_out = false;
  std::string output;  // stdout
  std::string errors;  // stderr
};

// A started program; killed (with its process group) when this object goes before it ended. From
// the main thread alone (core/base/process/subprocess.h).
class Program {
 public:
  Program(const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment = {});

  pid_t pid() const { return (*child_)->pid(); }
  void Signal(int signal) const { (*child_)->Signal(signal); }
  // What it has written to stdout so far.
  std::string OutputSoFar() const { return (*child_)->Output(); }
  bool Running() const { return child_.ok() && (*child_)->Running(); }
  ProgramResult Wait(absl::Duration timeout);

 private:
  absl::StatusOr<std::unique_ptr<Subprocess>> child_;
};

// Folder of the programs under test, from the build.
std::string BinDirectory();

// Runs `shoal ARGUMENTS...` to its end.
ProgramResult RunShoal(std::vector<std::string> arguments, absl::Duration limit = absl::Minutes(1));

// What `shoal checkpoint hash` prints of a checkpoint, or of a folder's newest.
std::string HashOf(const std::string& directory, absl::Duration limit = absl::Minutes(1));

// A new empty folder under the test's temporary folder.
std::string FreshDirectory(const std::string& name);

// The folder of shared test data, or empty where SHOAL_TEST_DATA is not set.
std::string TestData();

}  // namespace shoal::testing
