#include "worker/job/run_watch.h"

#include <utility>

#include "core/base/threads/steady_await.h"

namespace shoal::worker {

RunWatch::RunWatch(Options options, Clock& clock)
    : options_(std::move(options)), clock_(clock), thread_([this] { Run(); }) {}

RunWatch::~RunWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void RunWatch::BeginStep() {
  absl::MutexLock lock(&mutex_);
  begun_ = clock_.Now();
}

void RunWatch::EndStep() {
  absl::MutexLock lock(&mutex_);
  begun_.reset();
}

bool RunWatch::StepTakesLong() {
  absl::MutexLock lock(&mutex_);
  return begun_.has_value() && clock_.Now() - *begun_ >= options_.patience;
}

void RunWatch::Run() {
  const auto stops = [this] {
    absl::MutexLock lock(&mutex_);
    return AwaitFor(&mutex_, absl::Condition(&stopping_), options_.interval);
  };
  while (!stops()) {
    if (StepTakesLong() && options_.is_over()) {
      options_.end();
      return;
    }
  }
}

}  // namespace shoal::worker
