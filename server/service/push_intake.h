// Takes pushes: handles the events of the transports' queues, hands pushes to whoever applies them,
// and keeps the connections. Has no threads: IntakeThreads (intake_threads.h) takes its turns, and
// the simulation does (tests/simulation).
//
// The slots granted bound the queue of work.
//
// Thread-safe, but that one thread at a time takes turns of a queue. The destructor closes all
// connections, then frees the queues; the transports must outlive it.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "server/service/client_connection.h"
#include "server/service/layer_barrier.h"

namespace shoal::server {

class PushIntake {
 public:
  PushIntake(PushHandler handler, ServerMetrics* metrics,
             std::vector<std::unique_ptr<transport::EventQueue>> queues);
  ~PushIntake();
  PushIntake(const PushIntake&) = delete;
  PushIntake& operator=(const PushIntake&) = delete;

  size_t queues() const { return queues_.size(); }
  transport::EventQueue* queue(size_t index) { return queues_[index].events.get(); }

  // Handles what has come over that queue, and applies one waiting push. False: there was neither.
  bool Turn(size_t queue);
  // Applies one waiting push; false if there is none.
  bool TakeOne();
  // Blocks until more than one push waits; false once Stop was called.
  bool AwaitMoreThanOne();
  // Finds pushes whose doorbell was lost. To be called a few times a second: so a lost doorbell
  // delays a push but never loses it (over RDMA a push waits for its doorbell, see
  // client_connection.h).
  void LookOver();
  // Ends waits for turns.
  void Stop();
  bool stopping() const;

  // Takes pushes from it from now on. Closes an earlier connection of the same incarnation.
  void Add(std::shared_ptr<ClientConnection> connection);
  // Closes that incarnation's connection, if there is one.
  void Remove(uint64_t incarnation);
  int64_t connections() const;

  // Begins an attempt whose workers may wait for each other at layers (layer_barrier.h).
  void BeginBarriers(int64_t step, int64_t attempt, std::vector<uint64_t> workers);

 private:
  struct Queue {
    std::unique_ptr<transport::EventQueue> events;
    std::array<transport::Event, 64> polled;  // a turn's scratch
  };
  struct Work {
    std::shared_ptr<ClientConnection> connection;
    int64_t slot = 0;
  };

  void Dispatch(const transport::Event& event);
  void Enqueue(const std::shared_ptr<ClientConnection>& connection, int64_t slot);
  std::shared_ptr<ClientConnection> Find(uint64_t connection) const;
  void RingAll(const std::vector<LayerBarrier::Ring>& rings);
  void Forget(uint64_t connection, const absl::Status& why);

  const PushHandler handler_;
  ServerMetrics* const metrics_;
  std::vector<Queue> queues_;

  LayerBarrier barrier_;

  mutable absl::Mutex connections_mutex_;
  // In order: what is done to all of them is done in the same order in every process.
  std::map<uint64_t, std::shared_ptr<ClientConnection>> by_id_ ABSL_GUARDED_BY(connections_mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<ClientConnection>> by_incarnation_
      ABSL_GUARDED_BY(connections_mutex_);
  // Connections that closed before they were added.
  absl::flat_hash_set<uint64_t> closed_early_ ABSL_GUARDED_BY(connections_mutex_);

  mutable absl::Mutex work_mutex_;
  std::deque<Work> work_ ABSL_GUARDED_BY(work_mutex_);
  bool stopping_ ABSL_GUARDED_BY(work_mutex_) = false;
};

}  // namespace shoal::server
