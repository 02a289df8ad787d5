#include "tests/support/program.h"

#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "core/base/random.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace shoal::testing {

Program::Program(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment)
    : child_(Subprocess::Start(
          {.name = arguments.at(0), .arguments = arguments, .environment = environment})) {}

ProgramResult Program::Wait(absl::Duration timeout) {
  if (!child_.ok()) {
    return {.exit_code = 127, .errors = Describe(child_.status())};
  }
  Subprocess& child = **child_;
  ProgramResult result;
  const std::optional<ChildEnd> end = child.Wait(timeout);
  if (end) {
    result.exit_code = WIFEXITED(end->wait_status) ? WEXITSTATUS(end->wait_status)
                                                   : 128 + WTERMSIG(end->wait_status);
  } else {
    result.timed_out = true;
    result.exit_code = 128 + SIGKILL;
    child.Kill();
  }
  result.output = child.Output();
  result.errors = child.Errors();
  return result;
}

std::string BinDirectory() { return SHOAL_BIN_DIRECTORY; }

ProgramResult RunShoal(std::vector<std::string> arguments, absl::Duration limit) {
  arguments.insert(arguments.begin(), BinDirectory() + "/shoal");
  return Program(arguments).Wait(limit);
}

std::string HashOf(const std::string& directory, absl::Duration limit) {
  return RunShoal({"checkpoint", "hash", directory}, limit).output;
}

std::string FreshDirectory(const std::string& name) {
  const std::string path =
      fmt::format("{}/{}-{}", ::testing::TempDir(), name, SecureToken().substr(0, 12));
  std::filesystem::create_directories(path);
  return path;
}

std::string TestData() {
  const char* path = std::getenv("SHOAL_TEST_DATA");
  return path == nullptr ? "" : path;
}

}  // namespace shoal::testing
