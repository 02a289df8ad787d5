#include "core/base/process/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include "absl/strings/str_split.h"
#include "core/base/check.h"
#include "core/base/status.h"

extern char** environ;

namespace shoal {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(10);
constexpr absl::Duration kKillWait =
    absl::Seconds(5);  // a killed process ends at once unless the kernel is stuck
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

// Memory to read and write as a file.
absl::StatusOr<UniqueFd> MemoryFile(std::string_view contents = {}) {
  UniqueFd file(memfd_create("subprocess", MFD_CLOEXEC));
  if (!file.valid() ||
      pwrite(file.get(), contents.data(), contents.size(), 0) != std::ssize(contents)) {
    return ErrnoToStatus(errno, "memory for a child's input or output");
  }
  return file;
}

std::string ContentsOf(int file) {
  struct stat status = {};
  fstat(file, &status);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(file, text.data(), text.size(), 0))));
  return text;
}

std::string LastLines(std::string text, int lines) {
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  size_t begin = text.size();
  for (int line = 0; line < lines && begin != std::string::npos && begin > 0; ++line) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

struct ChildFiles {
  int input;
  int output;
  int errors;
};

// Runs in the child between fork and exec. Other threads of the parent may hold any lock, so it
// makes only async-signal-safe calls. On failure it writes errno to the pipe.
[[noreturn]] void BecomeProgram(char** arguments, char** environment, const ChildFiles& files,
                                int error_pipe, pid_t parent) {
  const auto fail = [error_pipe] {
    const int error_number = errno;
    [[maybe_unused]] const ssize_t written = write(error_pipe, &error_number, sizeof(error_number));
    _exit(127);
  };
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    fail();
  }
  if (getppid() != parent) {  // the parent died before the line above took effect
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
  if (dup2(files.input, STDIN_FILENO) < 0 || dup2(files.output, STDOUT_FILENO) < 0 ||
      dup2(files.errors, STDERR_FILENO) < 0) {
    fail();
  }
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  execvpe(arguments[0], arguments, environment);
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

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Start(const Command& command) {
  SHOAL_CHECK(gettid() == getpid());
  return Spawn(command);
}

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::Spawn(const Command& command) {
  SHOAL_CHECK(!command.arguments.empty());
  std::unique_ptr<Subprocess> child(new Subprocess(command));
  SHOAL_ASSIGN_OR_RETURN(const UniqueFd input, MemoryFile(command.input));
  if (command.log_file.empty()) {
    SHOAL_ASSIGN_OR_RETURN(child->output_, MemoryFile());
    SHOAL_ASSIGN_OR_RETURN(child->errors_, MemoryFile());
  } else {
    child->output_.Reset(
        open(command.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!child->output_.valid()) {
      return ErrnoToStatus(errno, fmt::format("log of {} {}", command.name, command.log_file));
    }
  }
  const ChildFiles files = {input.get(), child->output_.get(),
                            command.log_file.empty() ? child->errors_.get() : child->output_.get()};
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "pipe");
  }
  const UniqueFd read_end(pipe_ends[0]);
  UniqueFd write_end(pipe_ends[1]);
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = MergedEnvironment(command.environment);
  std::vector<char*> argument_pointers = Pointers(arguments);
  std::vector<char*> environment_pointers = Pointers(environment);

  const pid_t parent = getpid();
  child->pid_ = fork();
  if (child->pid_ < 0) {
    return ErrnoToStatus(errno, fmt::format("starting {}", command.name));
  }
  if (child->pid_ == 0) {
    BecomeProgram(argument_pointers.data(), environment_pointers.data(), files, write_end.get(),
                  parent);
  }
  write_end.Reset();
  int error_number = 0;
  ssize_t got;
  do {
    got = read(read_end.get(), &error_number, sizeof(error_number));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error_number)) {
    waitpid(child->pid_, nullptr, 0);
    return ErrnoToStatus(error_number,
                         fmt::format("starting {}: {}", command.name, command.arguments[0]));
  }
  child->ended_ = false;
  return child;
}

bool Subprocess::Running() const {
  siginfo_t info = {};
  return !ended_ &&
         waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

void Subprocess::Signal(int signal_number) const {
  if (!ended_) {
    kill(pid_, signal_number);  // not yet reaped, so the pid is still this child's
  }
}

std::optional<ChildEnd> Subprocess::Reap() {
  if (ended_ || Running()) {
    return std::nullopt;
  }
  kill(-pid_, SIGKILL);  // processes left in its group
  int wait_status = 0;
  waitpid(pid_, &wait_status, 0);
  ended_ = true;
  return ChildEnd{name_, pid_, wait_status, log_file_};
}

std::optional<ChildEnd> Subprocess::Wait(absl::Duration limit, Clock& clock) {
  const absl::Time deadline = clock.Now() + limit;
  std::optional<ChildEnd> end = Reap();
  while (!end && !ended_ && clock.Now() < deadline) {
    clock.SleepFor(kPollInterval);
    end = Reap();
  }
  return end;
}

void Subprocess::Kill() {
  if (!ended_) {
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);  // if it has left its group
    Wait(kKillWait);
  }
}

std::string Subprocess::Output() const { return ContentsOf(output_.get()); }
std::string Subprocess::Errors() const { return ContentsOf(errors_.get()); }

absl::StatusOr<std::string> RunCommand(const Command& command, absl::Duration limit) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Subprocess> child, Subprocess::Spawn(command));
  const std::optional<ChildEnd> end = child->Wait(limit);
  if (end && end->clean()) {
    return child->Output();
  }
  const std::string last_line = LastLines(child->Errors(), 1);
  if (!end) {
    return DeadlineExceeded("{} did not end within {}: {}", command.name,
                            absl::FormatDuration(limit), last_line);
  }
  return Internal("{}: {}", Describe(*end), last_line);
}

absl::Status ProcessGroup::Start(const Command& command) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Subprocess> child, Subprocess::Start(command));
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

std::vector<ChildEnd> ProcessGroup::Reap() {
  std::vector<ChildEnd> ended;
  std::erase_if(children_, [&](const std::unique_ptr<Subprocess>& child) {
    std::optional<ChildEnd> end = child->Wait(absl::ZeroDuration());
    if (end) {
      ended.push_back(*std::move(end));
    }
    return end.has_value();
  });
  return ended;
}

pid_t ProcessGroup::PidOf(const std::string& name) const {
  const auto found = std::find_if(children_.begin(), children_.end(),
                                  [&](const auto& child) { return child->name() == name; });
  return found == children_.end() ? 0 : (*found)->pid();
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
  for (const auto& child : children_) {
    child->Signal(signal_number);
  }
}

bool ProgramExists(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    if (access(fmt::format("{}/{}", std::string(folder), name).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
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
  return LastLines(std::move(text), lines);
}

}  // namespace shoal
