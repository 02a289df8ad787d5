#include "core/transport/bench/run_program.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_split.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr size_t kMostOutput = size_t{1} << 20;

std::string LastLine(const std::string& text) {
  std::string last;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    last = std::string(line);
  }
  return last.empty() ? "it printed nothing" : last;
}

// In the child: only what may follow a fork of a program with threads. Tells the parent of a
// failure through `report`.
[[noreturn]] void Execute(char* const* arguments, char* const* environment, int output,
                          int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int input = open("/dev/null", O_RDONLY);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execvpe(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(report, &error, sizeof error);
  _exit(127);
}

std::vector<std::string> MergedEnvironment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> merged;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!added.contains(std::string(text.substr(0, text.find('='))))) {
      merged.emplace_back(text);
    }
  }
  for (const auto& [name, value] : added) {
    merged.push_back(fmt::format("{}={}", name, value));
  }
  return merged;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) {
    pointers.push_back(const_cast<char*>(string.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return ErrnoToStatus(errno, "making a pipe");
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

absl::StatusOr<RunningProgram> RunningProgram::Start(
    const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& environment) {
  SHOAL_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  SHOAL_ASSIGN_OR_RETURN(Pipe report, MakePipe());
  const std::vector<std::string> variables = MergedEnvironment(environment);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  const pid_t pid = fork();
  if (pid < 0) {
    return ErrnoToStatus(errno, fmt::format("starting {}", arguments[0]));
  }
  if (pid == 0) {
    Execute(argv.data(), envp.data(), output.write.get(), report.write.get());
  }
  report.write.Reset();
  int error = 0;
  if (read(report.read.get(), &error, sizeof error) == sizeof error) {
    waitpid(pid, nullptr, 0);
    return NotFound("cannot run {}: {}", arguments[0], std::strerror(error));
  }
  return RunningProgram(arguments[0], pid, std::move(output.read));
}

RunningProgram::RunningProgram(RunningProgram&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      output_(std::move(other.output_)) {}

RunningProgram& RunningProgram::operator=(RunningProgram&& other) noexcept {
  if (this != &other) {
    Kill();
    name_ = std::move(other.name_);
    pid_ = std::exchange(other.pid_, -1);
    output_ = std::move(other.output_);
  }
  return *this;
}

RunningProgram::~RunningProgram() { Kill(); }

void RunningProgram::Kill() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);  // where it has no group of its own yet
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

bool RunningProgram::Running() const {
  siginfo_t info = {};
  return pid_ > 0 &&
         waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

absl::StatusOr<std::string> RunningProgram::Finish(absl::Duration limit) {
  const absl::Time deadline = RealClock().Now() + limit;
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const absl::Duration left = deadline - RealClock().Now();
    pollfd poll_fd = {.fd = output_.get(), .events = POLLIN, .revents = 0};
    if (left <= absl::ZeroDuration() || text.size() > kMostOutput) {
      Kill();
      return DeadlineExceeded("{} did not end within {}: {}", name_, absl::FormatDuration(limit),
                              LastLine(text));
    }
    if (poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) <= 0) {
      continue;
    }
    const ssize_t got = read(output_.get(), buffer.data(), buffer.size());
    if (got > 0) {
      text.append(buffer.data(), static_cast<size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      break;  // it has ended, and all that held its output
    }
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  if (status != 0) {
    return Internal("{} {}: {}", name_,
                    WIFEXITED(status) ? fmt::format("failed with status {}", WEXITSTATUS(status))
                                      : fmt::format("was killed by signal {}", WTERMSIG(status)),
                    LastLine(text));
  }
  return text;
}

absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& arguments,
                                       absl::Duration limit,
                                       const std::map<std::string, std::string>& environment) {
  SHOAL_ASSIGN_OR_RETURN(RunningProgram program, RunningProgram::Start(arguments, environment));
  return program.Finish(limit);
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

absl::StatusOr<int> FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!fd.valid() || bind(fd.get(), generic, length) != 0 ||
      getsockname(fd.get(), generic, &length) != 0) {
    return ErrnoToStatus(errno, "looking for a free port");
  }
  return ntohs(address.sin_port);
}

}  // namespace shoal::transport
