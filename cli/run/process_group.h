// Child processes that never outlive their parent. Each child runs in a process group of its own,
// so that Ctrl-C at the terminal reaches only this process, which then decides; and the kernel
// kills it when this process dies, however it dies (PR_SET_PDEATHSIG), so that a SIGKILL here
// leaves no orphan.
//
// The kernel ties that signal to the THREAD that forked: Start must be called from the main thread,
// which is checked. Otherwise not thread-safe. Destruction kills what still runs.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace shoal::cli {

struct ChildProgram {
  std::string name;                                // for messages: "server 1"
  std::vector<std::string> arguments;              // the first is the program's path
  std::map<std::string, std::string> environment;  // added to this process's own
  std::string log_file;                            // its stdout and stderr are appended here
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

class ProcessGroup {
 public:
  explicit ProcessGroup(Clock& clock = RealClock()) : clock_(clock) {}
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Returns once the program runs; an error names the program if it could not be executed.
  absl::Status Start(const ChildProgram& program);

  // The children that ended since the last call. Never blocks.
  std::vector<ChildEnd> Reap();

  // How many still run, as far as Reap has seen.
  size_t running() const { return children_.size(); }
  // 0 when no child of that name runs.
  pid_t PidOf(const std::string& name) const;

  // Asks all to end (SIGTERM), waits at most `grace` for them, kills (SIGKILL) and reaps those that
  // remain. Returns how the children ended; after it none runs.
  std::vector<ChildEnd> TakeDown(absl::Duration grace);
  // The same without asking.
  void Kill() { TakeDown(absl::ZeroDuration()); }
  // Waits at most `limit` for all to end by themselves.
  std::vector<ChildEnd> WaitForAll(absl::Duration limit);

 private:
  struct Child {
    std::string name;
    pid_t pid = 0;
    std::string log_file;
  };
  void Signal(int signal_number);

  Clock& clock_;
  std::vector<Child> children_;
};

// The last lines of a log file (at most `lines`, at most 16 KiB); empty when there is none.
std::string TailOf(const std::string& path, int lines);

}  // namespace shoal::cli
