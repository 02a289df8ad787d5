// Ends a step, or the making of a job, that nobody waits for any more. A worker hears that its run
// is over when it asks for the next step; one that waits for a server or a stage that is gone would
// not ask for long. While a step takes long, this asks from a thread of its own.
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
    std::function<bool()> is_over;                      // asks the coordinator
    std::function<void()> end;                          // once at most
  };
  explicit RunWatch(Options options, Clock& clock = RealClock());
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  void BeginStep();
  void EndStep();

 private:
  void Run();
  bool StepTakesLong();

  const Options options_;
  Clock& clock_;
  absl::Mutex mutex_;
  std::optional<absl::Time> begun_ ABSL_GUARDED_BY(mutex_);  // the step under way
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace shoal::worker
