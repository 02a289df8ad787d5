#include "worker/job/run_watch.h"

#include <utility>

#include "core/base/threads/steady_await.h"

namespace shoal::worker {
namespace {

constexpr int kEarlyQuestions = 10;  // of a thousand workers, so that no coordinator drowns in them

}  // namespace

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
  next_ = clock_.Now() + options_.patience;
}

void RunWatch::EndStep() {
  absl::MutexLock lock(&mutex_);
  next_.reset();
}

bool RunWatch::IsQuestionDue() {
  const bool lacks_server = options_.lacks_server();
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  early_ = lacks_server ? early_ : 0;
  const bool early = lacks_server && early_ < kEarlyQuestions;
  if (!next_.has_value() || (now < *next_ && !early)) {
    return false;
  }
  early_ += early ? 1 : 0;
  next_ = now + options_.interval;
  return true;
}

void RunWatch::Run() {
  const auto stops = [this] {
    absl::MutexLock lock(&mutex_);
    return AwaitFor(&mutex_, absl::Condition(&stopping_), options_.look);
  };
  while (!stops()) {
    if (IsQuestionDue() && options_.is_over()) {
      options_.end();
      return;
    }
  }
}

}  // namespace shoal::worker
