#include "server/service/intake_threads.h"

#include "core/base/clock.h"

namespace shoal::server {
namespace {

// Longest sleep of an intake without clients.
constexpr absl::Duration kIdleWait = absl::Milliseconds(500);

}  // namespace

IntakeThreads::IntakeThreads(const Options& options, PushIntake* intake)
    : options_(options), intake_(*intake) {
  for (size_t queue = 0; queue < intake_.queues(); ++queue) {
    threads_.emplace_back([this, queue] { RunQueue(queue); });
  }
  while (std::ssize(threads_) < options_.threads) {
    // The thread of a queue takes one waiting push itself.
    threads_.emplace_back([this] { Help(); });
  }
}

IntakeThreads::~IntakeThreads() {
  intake_.Stop();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void IntakeThreads::RunQueue(size_t queue) {
  absl::Time looked_over = RealClock().Now();
  while (true) {
    const bool worked = intake_.Turn(queue);
    if (intake_.stopping()) {
      return;
    }
    if (queue == 0 && RealClock().Now() - looked_over > options_.look_over_interval) {
      intake_.LookOver();
      looked_over = RealClock().Now();
    }
    if (!worked) {
      intake_.queue(queue)->Wait(intake_.connections() > 0 ? options_.look_over_interval
                                                           : kIdleWait);
    }
  }
}

void IntakeThreads::Help() {
  while (intake_.AwaitMoreThanOne()) {
    while (intake_.TakeOne()) {
    }
  }
}

}  // namespace shoal::server
