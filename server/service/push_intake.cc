#include "server/service/push_intake.h"

#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

// Handshakes that fail at once are normal; forgets connections beyond this number.
constexpr size_t kMaxClosedEarly = 4096;

}  // namespace

PushIntake::PushIntake(PushHandler handler, ServerMetrics* metrics,
                       std::vector<std::unique_ptr<transport::EventQueue>> queues)
    : handler_(std::move(handler)), metrics_(metrics), queues_(queues.size()) {
  for (size_t i = 0; i < queues.size(); ++i) {
    queues_[i].events = std::move(queues[i]);
  }
}

void PushIntake::Stop() {
  {
    absl::MutexLock lock(&work_mutex_);
    stopping_ = true;
  }
  for (const Queue& queue : queues_) {
    queue.events->Wake();
  }
}

bool PushIntake::stopping() const {
  absl::MutexLock lock(&work_mutex_);
  return stopping_;
}

PushIntake::~PushIntake() {
  {
    absl::MutexLock lock(&work_mutex_);
    metrics_->queue_depth.Decrement(static_cast<double>(work_.size()));
    work_.clear();
  }
  absl::MutexLock lock(&connections_mutex_);
  metrics_->clients.Decrement(static_cast<double>(by_id_.size()));
  for (const auto& [id, connection] : by_id_) {
    connection->Close();
  }
  by_incarnation_.clear();
  by_id_.clear();
}

void PushIntake::Add(std::shared_ptr<ClientConnection> connection) {
  Remove(connection->client().incarnation);
  {
    absl::MutexLock lock(&connections_mutex_);
    if (closed_early_.erase(connection->id()) > 0) {
      return;
    }
    by_incarnation_[connection->client().incarnation] = connection;
    by_id_[connection->id()] = std::move(connection);
    metrics_->clients.Increment();
  }
  for (const Queue& queue : queues_) {
    queue.events->Wake();  // An idle intake sleeps longer than one that scans slots.
  }
}

void PushIntake::Remove(uint64_t incarnation) {
  std::shared_ptr<ClientConnection> connection;
  {
    absl::MutexLock lock(&connections_mutex_);
    const auto found = by_incarnation_.find(incarnation);
    if (found == by_incarnation_.end()) {
      return;
    }
    connection = found->second;
  }
  connection->Close();  // Its kClosed event forgets it.
}

int64_t PushIntake::connections() const {
  absl::MutexLock lock(&connections_mutex_);
  return static_cast<int64_t>(by_id_.size());
}

std::shared_ptr<ClientConnection> PushIntake::Find(uint64_t connection) const {
  absl::MutexLock lock(&connections_mutex_);
  const auto found = by_id_.find(connection);
  return found == by_id_.end() ? nullptr : found->second;
}

void PushIntake::Forget(uint64_t id, const absl::Status& why) {
  std::shared_ptr<ClientConnection> connection;  // Destroyed after the lock is released.
  absl::MutexLock lock(&connections_mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) {
    if (closed_early_.size() < kMaxClosedEarly) {
      closed_early_.insert(id);
    }
    return;
  }
  connection = std::move(found->second);
  by_id_.erase(found);
  const auto current = by_incarnation_.find(connection->client().incarnation);
  if (current != by_incarnation_.end() && current->second == connection) {
    by_incarnation_.erase(current);
  }
  metrics_->clients.Decrement();
  if (why.ok()) {
    LogInfo("{} closed its {} connection", connection->client().name, connection->transport());
  } else {
    LogWarning("{} connection of {} is gone: {}", connection->transport(),
               connection->client().name, Message(why));
  }
}

void PushIntake::Enqueue(const std::shared_ptr<ClientConnection>& connection, int64_t slot) {
  if (!connection->MarkWaiting(slot)) {
    return;
  }
  absl::MutexLock lock(&work_mutex_);
  work_.push_back({connection, slot});
  metrics_->queue_depth.Increment();
}

bool PushIntake::TakeOne() {
  Work work;
  {
    absl::MutexLock lock(&work_mutex_);
    if (work_.empty()) {
      return false;
    }
    work = std::move(work_.front());
    work_.pop_front();
    metrics_->queue_depth.Decrement();
  }
  work.connection->TakePush(work.slot, handler_);
  return true;
}

void PushIntake::Dispatch(const transport::Event& event) {
  if (event.kind == transport::Event::Kind::kClosed) {
    Forget(event.connection, event.status);
    return;
  }
  const std::shared_ptr<ClientConnection> connection = Find(event.connection);
  if (connection == nullptr) {
    return;
  }
  if (event.kind == transport::Event::Kind::kDoorbell &&
      transport::IsBarrierDoorbell(event.immediate)) {
    RingAll(barrier_.OnDoorbell(connection->client().incarnation, event.immediate));
  } else if (event.kind == transport::Event::Kind::kDoorbell) {
    Enqueue(connection, static_cast<int64_t>(event.immediate));
  } else if (event.kind == transport::Event::Kind::kWriteDone) {
    connection->OnWriteDone(event.operation);
  }
}

void PushIntake::BeginBarriers(int64_t step, int64_t attempt, std::vector<uint64_t> workers) {
  RingAll(barrier_.Begin(step, attempt, std::move(workers)));
}

void PushIntake::RingAll(const std::vector<LayerBarrier::Ring>& rings) {
  for (const LayerBarrier::Ring& ring : rings) {
    std::shared_ptr<ClientConnection> connection;
    {
      absl::MutexLock lock(&connections_mutex_);
      const auto found = by_incarnation_.find(ring.incarnation);
      connection = found == by_incarnation_.end() ? nullptr : found->second;
    }
    if (connection != nullptr) {  // otherwise it asks again after reconnecting
      connection->Ring(ring.immediate);
    }
  }
}

bool PushIntake::Turn(size_t queue) {
  Queue& turns = queues_[queue];
  const size_t count = turns.events->Poll(turns.polled);
  for (size_t i = 0; i < count; ++i) {
    Dispatch(turns.polled[i]);
  }
  return TakeOne() || count > 0;
}

bool PushIntake::AwaitMoreThanOne() {
  absl::MutexLock lock(&work_mutex_);
  work_mutex_.Await(absl::Condition(
      +[](PushIntake* self)
           ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->stopping_ || self->work_.size() > 1; },
      this));
  return !stopping_;
}

void PushIntake::LookOver() {
  std::vector<std::shared_ptr<ClientConnection>> connections;
  {
    absl::MutexLock lock(&connections_mutex_);
    for (const auto& [id, connection] : by_id_) {
      connections.push_back(connection);
    }
  }
  for (const std::shared_ptr<ClientConnection>& connection : connections) {
    for (const int64_t slot : connection->LookOver()) {
      metrics_->found_without_doorbell.Increment();
      Enqueue(connection, slot);
    }
  }
}

}  // namespace shoal::server
