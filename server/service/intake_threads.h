// The threads of a PushIntake. One per event queue takes its turns and applies pushes itself; more,
// up to `threads`, help when more than one push waits. An idle intake sleeps in EventQueue::Wait
// and looks over the slots a few times a second.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "server/service/push_intake.h"

namespace shoal::server {

class IntakeThreads {
 public:
  struct Options {
    int threads = 1;
    absl::Duration look_over_interval = absl::Milliseconds(50);
  };
  // Starts them. The intake outlives them.
  IntakeThreads(const Options& options, PushIntake* intake);
  ~IntakeThreads();
  IntakeThreads(const IntakeThreads&) = delete;
  IntakeThreads& operator=(const IntakeThreads&) = delete;

 private:
  void RunQueue(size_t queue);
  void Help();

  const Options options_;
  PushIntake& intake_;
  std::vector<std::thread> threads_;
};

}  // namespace shoal::server
