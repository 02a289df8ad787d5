#include "cli/run/process_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/status.h"

extern char** environ;

namespace shoal::cli {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(10);
constexpr absl::Duration kKillWait =
    absl::Seconds(5);  // a killed process is gone at once unless the kernel is stuck
constexpr int64_t kTailBytes = 16 * 1024;

std::vector<std::string> MergedEnvironment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) {
      result.push_back(text);
    }
  }
  for (const auto& [key, value] : added) {
    result.push_back(fmt::format("{}={}", key, value));
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

// What the child does between fork and exec. Other threads of the parent may hold any lock, so only
// async-signal-safe calls are made here. On failure errno goes up the pipe.
[[noreturn]] void BecomeProgram(char** arguments, char** environment, int log, int error_pipe,
                                pid_t parent) {
  const auto fail = [error_pipe] {
    const int error_number = errno;
    [[maybe_unused]] const ssize_t written = write(error_pipe, &error_number, sizeof(error_number));
    _exit(127);
  };
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    fail();
  }
  if (getppid() != parent) {  // it died before the line above took effect
    _exit(127);
  }
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    sigaction(number, &standard, nullptr);
  }
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
      dup2(log, STDERR_FILENO) < 0) {
    fail();
  }
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(arguments[0], arguments, environment);
  fail();
  __builtin_unreachable();
}

}  // namespace

std::string Describe(const ChildEnd& end) {
  if (WIFSIGNALED(end.wait_status)) {
    const int number = WTERMSIG(end.wait_status);
    const char* name = sigabbrev_np(number);
    return fmt::format("{} (pid {}) was killed by SIG{} ({})", end.name, end.pid,
                       name != nullptr ? name : "?", strsignal(number));
  }
  return fmt::format("{} (pid {}) exited with status {}", end.name, end.pid,
                     WEXITSTATUS(end.wait_status));
}

ProcessGroup::~ProcessGroup() { Kill(); }

absl::Status ProcessGroup::Start(const ChildProgram& program) {
  SHOAL_CHECK(gettid() == getpid());
  SHOAL_CHECK(!program.arguments.empty());
  UniqueFd log(open(program.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) {
    return ErrnoToStatus(errno, fmt::format("log of {} {}", program.name, program.log_file));
  }
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "pipe");
  }
  UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  std::vector<std::string> arguments = program.arguments;
  std::vector<std::string> environment = MergedEnvironment(program.environment);
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> environment_pointers = Pointers(environment);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return ErrnoToStatus(errno, fmt::format("starting {}", program.name));
  }
  if (pid == 0) {
    BecomeProgram(argument_pointers.data(), environment_pointers.data(), log.get(), write_end.get(),
                  parent);
  }
  write_end.Reset();
  int error_number = 0;
  ssize_t got;
  do {
    got = read(read_end.get(), &error_number, sizeof(error_number));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error_number)) {
    waitpid(pid, nullptr, 0);
    return ErrnoToStatus(error_number,
                         fmt::format("starting {}: {}", program.name, program.arguments[0]));
  }
  children_.push_back({.name = program.name, .pid = pid, .log_file = program.log_file});
  return absl::OkStatus();
}

std::vector<ChildEnd> ProcessGroup::Reap() {
  std::vector<ChildEnd> ended;
  std::erase_if(children_, [&](const Child& child) {
    int wait_status = 0;
    if (waitpid(child.pid, &wait_status, WNOHANG) != child.pid) {
      return false;
    }
    ended.push_back({child.name, child.pid, wait_status, child.log_file});
    return true;
  });
  return ended;
}

pid_t ProcessGroup::PidOf(const std::string& name) const {
  const auto found = std::find_if(children_.begin(), children_.end(),
                                  [&](const Child& c) { return c.name == name; });
  return found == children_.end() ? 0 : found->pid;
}

std::vector<ChildEnd> ProcessGroup::WaitForAll(absl::Duration limit) {
  const absl::Time deadline = clock_.Now() + limit;
  std::vector<ChildEnd> all = Reap();
  while (!children_.empty() && clock_.Now() < deadline) {
    clock_.SleepFor(kPollInterval);
    const std::vector<ChildEnd> more = Reap();
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::vector<ChildEnd> ProcessGroup::TakeDown(absl::Duration grace) {
  std::vector<ChildEnd> all;
  if (grace > absl::ZeroDuration()) {
    Signal(SIGTERM);
    all = WaitForAll(grace);
  }
  Signal(SIGKILL);
  const std::vector<ChildEnd> killed = WaitForAll(kKillWait);
  all.insert(all.end(), killed.begin(), killed.end());
  children_.clear();
  return all;
}

void ProcessGroup::Signal(int signal_number) {
  for (const Child& child : children_) {
    kill(child.pid, signal_number);  // not yet reaped, so the pid is still this child's
  }
}

std::string TailOf(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return "";
  }
  const auto size = static_cast<int64_t>(file.tellg());
  const int64_t from = std::max<int64_t>(0, size - kTailBytes);
  file.seekg(from);
  std::string text(static_cast<size_t>(size - from), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  size_t begin = text.size();
  for (int line = 0; line < lines && begin != std::string::npos && begin > 0; ++line) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

}  // namespace shoal::cli
