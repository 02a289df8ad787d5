#include "server/coordinator/background_thread.h"

#include "core/base/check.h"

namespace shoal::server {

BackgroundThread::BackgroundThread() : thread_([this] { Loop(); }) {}

BackgroundThread::~BackgroundThread() { Stop(); }

void BackgroundThread::Run(std::function<void()> work) {
  // A job asks for one plan, one checkpoint operation, one write of its record and its end at a
  // time, and the coordinator bounds its jobs (CoordinatorCore::kMaxWaiting): more is a bug.
  constexpr size_t kMaxWaiting = 512;
  absl::MutexLock lock(&mutex_);
  if (!stopping_) {
    SHOAL_CHECK(queue_.size() < kMaxWaiting);
    queue_.push_back(std::move(work));
  }
}

void BackgroundThread::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    queue_.clear();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void BackgroundThread::Loop() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !queue_.empty();
      };
      mutex_.Await(absl::Condition(&ready));
      if (stopping_) {
        return;
      }
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace shoal::server
