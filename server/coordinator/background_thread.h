// Runs functions in order on one thread: the coordinator's work that may block.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace shoal::server {

class BackgroundThread {
 public:
  BackgroundThread();
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  // Never blocks. After Stop, does nothing.
  void Run(std::function<void()> work);
  // Waits for the running function, drops the rest, and ends the thread. Idempotent.
  void Stop();

 private:
  void Loop();

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace shoal::server
