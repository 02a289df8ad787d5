#include "server/coordinator/record/record_queue.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {

struct RecordQueue::State : std::enable_shared_from_this<RecordQueue::State> {
  State(Executor executor, Write writer) : disk(std::move(executor)), write(std::move(writer)) {}

  const Executor disk;
  const Write write;
  absl::Mutex mutex;
  std::string lines ABSL_GUARDED_BY(mutex);
  int64_t dropped ABSL_GUARDED_BY(mutex) = 0;
  bool open ABSL_GUARDED_BY(mutex) = false;
  bool writing ABSL_GUARDED_BY(mutex) = false;  // or about to
  bool failing ABSL_GUARDED_BY(mutex) = false;

  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (open && !writing && !lines.empty()) {
      writing = true;
      disk([self = shared_from_this()] { self->WriteAll(); });
    }
  }

  void WriteAll() {
    std::string taken;
    {
      absl::MutexLock lock(&mutex);
      if (dropped > 0) {
        lines += Json({{"event", "dropped"}, {"lines", std::exchange(dropped, 0)}}).dump() + "\n";
      }
      taken.swap(lines);
    }
    const absl::Status status = taken.empty() ? absl::OkStatus() : write(taken);
    absl::MutexLock lock(&mutex);
    if (!status.ok() && !failing) {
      LogWarning("the run's record is not whole: {}", Message(status));
    }
    failing = !status.ok();
    writing = false;
    Start();
  }
};

RecordQueue::RecordQueue(Executor disk, Write write)
    : state_(std::make_shared<State>(std::move(disk), std::move(write))) {}

RecordQueue::~RecordQueue() {
  {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->open || state_->lines.empty()) {
      return;
    }
    state_->writing = true;
  }
  state_->WriteAll();
}

void RecordQueue::Add(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  absl::MutexLock lock(&state_->mutex);
  if (state_->lines.size() + text.size() > kMaxBytes) {
    ++state_->dropped;
    return;
  }
  state_->lines += text;
  state_->Start();
}

void RecordQueue::Open() {
  absl::MutexLock lock(&state_->mutex);
  state_->open = true;
  state_->Start();
}

}  // namespace shoal::server
