// Child processes that never outlive their parent. Each child runs in its own process group, so
// that Ctrl-C at the terminal reaches only this process, which then decides. The kernel kills the
// child when this process dies for any reason (PR_SET_PDEATHSIG), so even SIGKILL leaves no orphan.
// When a child ends, the rest of its group is killed. A child inherits only its input and output,
// and default signals.
//
// The kernel ties that signal to the THREAD that forked: Subprocess::Start and ProcessGroup::Start
// must be called from the main thread, which is checked; RunCommand waits for its child and may be
// called from any. Otherwise not thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/file.h"

namespace shoal {

struct Command {
  std::string name;                                     // for messages: "server 1"
  std::vector<std::string> arguments;                   // the first: a path, or a name on PATH
  std::map<std::string, std::string> environment = {};  // added to this process's own
  std::string log_file = {};  // gets stdout and stderr, appended; empty: kept in memory
  std::string input = {};     // its stdin
};

// How a child ended.
struct ChildEnd {
  std::string name;
  pid_t pid = 0;
  int wait_status = 0;  // as waitpid gives it
  std::string log_file;

  bool clean() const { return wait_status == 0; }
};
// "server 1 (pid 42) was killed by SIGKILL (Killed)", "worker 0 (pid 7) exited with status 3".
std::string Describe(const ChildEnd& end);

// One child. Destruction kills it.
class Subprocess {
 public:
  // Returns once the program runs; an error names the program if it could not be executed.
  static absl::StatusOr<std::unique_ptr<Subprocess>> Start(const Command& command);
  ~Subprocess() { Kill(); }
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  bool Running() const;
  // Does nothing once the child's end was taken.
  void Signal(int signal_number) const;
  // Takes the child's end, at most once. Waits at most `limit`; nothing if it still runs.
  std::optional<ChildEnd> Wait(absl::Duration limit, Clock& clock = RealClock());
  // Kills the child and its process group, and waits for its end.
  void Kill();

  // The output so far, without a log file.
  std::string Output() const;
  std::string Errors() const;

 private:
  friend absl::StatusOr<std::string> RunCommand(const Command& command, absl::Duration limit);
  explicit Subprocess(const Command& command) : name_(command.name), log_file_(command.log_file) {}
  static absl::StatusOr<std::unique_ptr<Subprocess>> Spawn(const Command& command);
  std::optional<ChildEnd> Reap();

  const std::string name_;
  const std::string log_file_;
  pid_t pid_ = 0;
  bool ended_ = true;  // and reaped
  UniqueFd output_;
  UniqueFd errors_;
};

// Runs a command to its end; returns what it wrote to stdout. DeadlineExceeded if it takes longer
// than `limit`, Internal with the last line of stderr if it fails.
absl::StatusOr<std::string> RunCommand(const Command& command, absl::Duration limit);

// Children that are watched and ended together. Destruction kills those that still run.
class ProcessGroup {
 public:
  explicit ProcessGroup(Clock& clock = RealClock()) : clock_(clock) {}

  absl::Status Start(const Command& command);

  // Returns the children that ended since the last call. Never blocks.
  std::vector<ChildEnd> Reap();

  // How many run, as of the last Reap.
  size_t running() const { return children_.size(); }
  // 0 if no child of that name runs.
  pid_t PidOf(const std::string& name) const;

  // Asks all to end (SIGTERM), waits at most `grace`, kills (SIGKILL) and reaps the rest. Returns
  // how they ended; none runs afterwards.
  std::vector<ChildEnd> TakeDown(absl::Duration grace);
  // Same as above without asking.
  void Kill() { TakeDown(absl::ZeroDuration()); }
  // Waits at most `limit` for all to end on their own.
  std::vector<ChildEnd> WaitForAll(absl::Duration limit);

 private:
  void Signal(int signal_number);

  Clock& clock_;
  std::vector<std::unique_ptr<Subprocess>> children_;
};

// Whether PATH has a program of that name.
bool ProgramExists(const std::string& name);

// Returns the last lines of a log file (at most `lines`, at most 16 KiB); empty if there is none.
std::string TailOf(const std::string& path, int lines);

}  // namespace shoal
