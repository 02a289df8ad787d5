// Ends a step, or the making of a job, that nobody waits for any more. A worker hears that its run
// is over when it asks for the next step; one that waits for a server or a stage that is gone would
// not ask for long. While a step takes long, or lacks a server, this asks from a thread of its own.
//
// Thread-safe. Destruction waits for a question under way.
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace shoal::worker {

class RunWatch {
 public:
  struct Options {
    absl::Duration patience = absl::Seconds(1);         // from a step's begin
    absl::Duration interval = absl::Milliseconds(500);  // between questions
    // Between looks whether it lacks a server, and between the first few questions then: about as
    // long as a coordinator takes to know that a server is lost, and others to go on for it.
    absl::Duration look = absl::Milliseconds(100);
    std::function<bool()> lacks_server = [] { return false; };
    std::function<bool()> is_over;  // asks the coordinator
    std::function<void()> end;      // once at most
  };
  explicit RunWatch(Options options, Clock& clock = RealClock());
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  void BeginStep();
  void EndStep();

 private:
  void Run();
  bool IsQuestionDue();

  const Options options_;
  Clock& clock_;
  absl::Mutex mutex_;
  std::optional<absl::Time> next_ ABSL_GUARDED_BY(mutex_);  // question, during a step
  int early_ ABSL_GUARDED_BY(mutex_) = 0;                   // questions for lack of a server
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace shoal::worker
