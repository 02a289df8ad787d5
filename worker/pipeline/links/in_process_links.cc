#include "worker/pipeline/links/in_process_links.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/threads/steady_condition.h"

namespace shoal::worker {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::byte kNotANumber{0xFF};

// A message as both ends name it.
struct Name {
  int64_t step = 0;
  int64_t attempt = 0;
  int chunk = 0;
  int microbatch = 0;

  bool operator==(const Name&) const = default;
};

struct Queue {
  std::vector<Bytes> spare;
  std::map<StageMessage, Bytes> made;  // by the sender, not sent yet
  std::deque<std::pair<Name, Bytes>> sent;
  std::deque<Name> posted;
  struct Arrived {
    Name name;
    Bytes bytes;
    absl::Time at;  // not before
  };
  std::deque<Arrived> arrived;
  std::map<StageMessage, Bytes> in_use;  // by the receiver
  // Since the links were made.
  int64_t rooms_made = 0;
  int64_t matched = 0;
  int64_t receives_posted = 0;
  int64_t consumed = 0;

  int64_t under_way() const { return rooms_made - matched; }
};

}  // namespace

// The state of all stages, with one lock.
class InProcessPipeline::Queues {
 public:
  explicit Queues(const InProcessLinksOptions& options)
      : options_(options), random_(options.seed) {}

  absl::StatusOr<std::byte*> Reserve(int from, const StageMessage& message, int64_t bytes,
                                     int send_buffers, absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    Queue& queue = queues_[{from, message.peer, message.gradient}];
    const absl::Time deadline = RealClock().Now() + timeout;
    while (open_ && queue.under_way() >= send_buffers) {
      if (changed_.Wait(&mutex_, deadline - RealClock().Now()) &&
          queue.under_way() >= send_buffers) {
        return DeadlineExceeded("{} messages are not received", queue.under_way());
      }
    }
    if (!open_) {
      return Closed(from);
    }
    ++queue.rooms_made;
    Bytes room;
    if (!queue.spare.empty()) {
      room = std::move(queue.spare.back());
      queue.spare.pop_back();
    }
    room.assign(static_cast<size_t>(bytes), kNotANumber);
    return queue.made.insert_or_assign(message, std::move(room)).first->second.data();
  }

  absl::Status Send(int from, const StageMessage& message, const Name& name) {
    absl::MutexLock lock(&mutex_);
    if (!open_) {
      return Closed(from);
    }
    Queue& queue = queues_[{from, message.peer, message.gradient}];
    auto made = queue.made.extract(message);
    if (made.empty()) {
      return Internal("{} is sent without room", NameOf(message));
    }
    queue.sent.emplace_back(name, std::move(made.mapped()));
    return Match(queue);
  }

  absl::Status Post(int to, const StageMessage& message, const Name& name, int slots) {
    absl::MutexLock lock(&mutex_);
    if (!open_) {
      return Closed(to);
    }
    Queue& queue = queues_[{message.peer, to, message.gradient}];
    if (++queue.receives_posted - queue.consumed > slots) {
      return Internal("{}: more than {} receives of the queue are posted", NameOf(message), slots);
    }
    queue.posted.push_back(name);
    return Match(queue);
  }

  absl::StatusOr<const std::byte*> Await(int to, const StageMessage& message, const Name& name,
                                         absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    Queue& queue = queues_[{message.peer, to, message.gradient}];
    const absl::Time deadline = RealClock().Now() + timeout;
    while (open_) {
      if (const auto here = queue.in_use.find(message); here != queue.in_use.end()) {
        return here->second.data();
      }
      const auto found = std::ranges::find(queue.arrived, name, &Queue::Arrived::name);
      const bool arrived = found != queue.arrived.end();
      if (arrived && found->at <= RealClock().Now()) {
        Bytes bytes = std::move(found->bytes);
        queue.arrived.erase(found);
        return queue.in_use.insert_or_assign(message, std::move(bytes)).first->second.data();
      }
      if (RealClock().Now() >= deadline) {
        return DeadlineExceeded("it did not come within {}", absl::FormatDuration(timeout));
      }
      changed_.Wait(&mutex_,
                    (arrived ? std::min(found->at, deadline) : deadline) - RealClock().Now());
    }
    return Closed(to);
  }

  absl::Status Consumed(int to, const StageMessage& message) {
    absl::MutexLock lock(&mutex_);
    if (!open_) {
      return Closed(to);
    }
    Queue& queue = queues_[{message.peer, to, message.gradient}];
    auto used = queue.in_use.extract(message);
    if (used.empty()) {
      return Internal("{} is consumed and was not there", NameOf(message));
    }
    ++queue.consumed;
    std::ranges::fill(used.mapped(), kNotANumber);
    queue.spare.push_back(std::move(used.mapped()));
    return absl::OkStatus();
  }

  // Waits until everything that the stage sent has been received.
  absl::Status AwaitSent(int from, absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const absl::Time deadline = RealClock().Now() + timeout;
    for (auto& [key, queue] : queues_) {
      while (std::get<0>(key) == from && queue.under_way() > 0) {
        if (!open_) {
          return Closed(from);
        }
        if (changed_.Wait(&mutex_, deadline - RealClock().Now()) && queue.under_way() > 0) {
          return DeadlineExceeded("stage {} did not receive {} messages within {}",
                                  std::get<1>(key), queue.under_way(),
                                  absl::FormatDuration(timeout));
        }
      }
    }
    return absl::OkStatus();  // even if closed since
  }

  absl::Status StatusOf(int stage) {
    absl::MutexLock lock(&mutex_);
    return open_ ? absl::OkStatus() : Closed(stage);
  }

  void Close(int stage, const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    if (open_) {
      open_ = false;
      closed_by_ = stage;
      why_ = why;
      changed_.SignalAll();
    }
  }

 private:
  absl::Status Closed(int stage) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stage == closed_by_ ? why_
                               : Unavailable("stage {} gave up: {}", closed_by_, Message(why_));
  }

  absl::Status Match(Queue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!queue.sent.empty() && !queue.posted.empty()) {
      auto& [sent, bytes] = queue.sent.front();
      const Name& posted = queue.posted.front();
      if (sent != posted) {
        return DataLoss("chunk {} microbatch {} was sent where chunk {} microbatch {} is expected",
                        sent.chunk, sent.microbatch, posted.chunk, posted.microbatch);
      }
      queue.arrived.push_back({posted, std::move(bytes),
                               RealClock().Now() + random_.Uniform() * options_.longest_delay});
      queue.sent.pop_front();
      queue.posted.pop_front();
      ++queue.matched;
      changed_.SignalAll();
    }
    return absl::OkStatus();
  }

  const InProcessLinksOptions options_;
  absl::Mutex mutex_;
  SteadyCondition changed_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::map<std::tuple<int, int, bool>, Queue> queues_ ABSL_GUARDED_BY(mutex_);  // from, to, kind
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  int closed_by_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

// A stage's view.
class InProcessPipeline::Links final : public StageLinks {
 public:
  Links(Queues& queues, int stage) : queues_(queues), stage_(stage) {}

  absl::Status BeginStep(const StepMessages& step) override {
    step_ = step.step;
    attempt_ = step.attempt;
    bytes_.assign(step.bytes.begin(), step.bytes.end());
    specs_.clear();
    for (const plan::MessageQueue& queue : step.queues) {
      specs_[{queue.from, queue.to, queue.gradients}] = queue;
    }
    return absl::OkStatus();
  }
  absl::Status EndStep(absl::Duration timeout) override {
    return queues_.AwaitSent(stage_, timeout);
  }
  absl::StatusOr<std::byte*> Reserve(const StageMessage& message, absl::Duration timeout) override {
    return queues_.Reserve(stage_, message, bytes_[static_cast<size_t>(message.microbatch)],
                           specs_.at({stage_, message.peer, message.gradient}).send_buffers,
                           timeout);
  }
  absl::Status Send(const StageMessage& message) override {
    return queues_.Send(stage_, message, NameIn(message));
  }
  absl::Status Post(const StageMessage& message) override {
    return queues_.Post(stage_, message, NameIn(message),
                        specs_.at({message.peer, stage_, message.gradient}).slots);
  }
  absl::StatusOr<const std::byte*> Await(const StageMessage& message,
                                         absl::Duration timeout) override {
    return queues_.Await(stage_, message, NameIn(message), timeout);
  }
  absl::Status Consumed(const StageMessage& message) override {
    return queues_.Consumed(stage_, message);
  }
  void Close(const absl::Status& why) override { queues_.Close(stage_, why); }
  absl::Status status() const override { return queues_.StatusOf(stage_); }

 private:
  Name NameIn(const StageMessage& message) const {
    return {step_, attempt_, message.chunk, message.microbatch};
  }

  Queues& queues_;
  const int stage_;
  int64_t step_ = 0;
  int64_t attempt_ = 0;
  std::vector<int64_t> bytes_;
  std::map<std::tuple<int, int, bool>, plan::MessageQueue> specs_;
};

InProcessPipeline::InProcessPipeline(int stages, const InProcessLinksOptions& options)
    : queues_(std::make_unique<Queues>(options)) {
  for (int stage = 0; stage < stages; ++stage) {
    links_.push_back(std::make_unique<Links>(*queues_, stage));
  }
}

InProcessPipeline::~InProcessPipeline() = default;

}  // namespace shoal::worker
