#include "tests/support/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/time/clock.h"
#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

namespace shoal::testing {
namespace {

std::string ReadOrEmpty(const std::string& path) {
  auto contents = ReadFile(path);
  return contents.ok() ? *contents : "";
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment) {
  SHOAL_CHECK(!arguments.empty());
  const std::string prefix = fmt::format("{}/program-{}", ::testing::TempDir(), SecureToken());
  output_path_ = prefix + ".out";
  errors_path_ = prefix + ".err";
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  pid_ = fork();
  SHOAL_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    setpgid(0, 0);
    for (const auto& [key, value] : environment) {
      setenv(key.c_str(), value.c_str(), 1);
    }
    const int output = open(output_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int errors = open(errors_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int input = open("/dev/null", O_RDONLY);
    dup2(input, 0);
    dup2(output, 1);
    dup2(errors, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
}

Program::~Program() {
  if (!reaped_) {
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::filesystem::remove(output_path_);
  std::filesystem::remove(errors_path_);
}

void Program::Signal(int signal) const { kill(pid_, signal); }

std::string Program::OutputSoFar() const { return ReadOrEmpty(output_path_); }

bool Program::Running() const {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

ProgramResult Program::Wait(absl::Duration timeout) {
  ProgramResult result;
  const absl::Time deadline = absl::Now() + timeout;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (absl::Now() > deadline) {
      result.timed_out = true;
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  reaped_ = true;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.output = ReadOrEmpty(output_path_);
  result.errors = ReadOrEmpty(errors_path_);
  return result;
}

std::string BinDirectory() { return SHOAL_BIN_DIRECTORY; }

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
