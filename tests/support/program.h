// Runs a program as a test sees it: arguments in, exit code and output back, never longer than a
// deadline.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace shoal::testing {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when killed by one
  bool timed_out = false;
  std::string output;  // stdout
  std::string errors;  // stderr
};

// A started program; killed (with its process group) when this object goes before it ended.
class Program {
 public:
  Program(const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // What it has written to stdout so far.
  std::string OutputSoFar() const;
  bool Running() const;
  ProgramResult Wait(absl::Duration timeout);

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::string output_path_;
  std::string errors_path_;
};

// Folder of the programs under test, from the build.
std::string BinDirectory();

// A new empty folder under the test's temporary folder.
std::string FreshDirectory(const std::string& name);

// The folder of shared test data, or empty where SHOAL_TEST_DATA is not set.
std::string TestData();

}  // namespace shoal::testing
