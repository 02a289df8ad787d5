// Takes pushes: polls the transports' event queues, hands pushes to the threads that apply them,
// and keeps the connections.
//
// Threads: one per event queue polls it and applies pushes itself; more, up to `threads`, help when
// more than one push waits. An idle intake sleeps in EventQueue::Wait and looks over the slots a
// few times a second, so a lost doorbell delays a push but never loses it (over RDMA a push waits
// for its doorbell, see client_connection.h). The slots granted bound the queue of work.
//
// Add and Remove: any thread. The destructor closes all connections, ends the threads, then frees
// the queues; the transports must outlive it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/service/client_connection.h"
#include "server/service/layer_barrier.h"

namespace shoal::server {

class PushIntake {
 public:
  struct Options {
    int threads = 1;
    absl::Duration look_over_interval = absl::Milliseconds(50);
  };
  PushIntake(const Options& options, PushHandler handler, ServerMetrics* metrics,
             std::vector<std::unique_ptr<transport::EventQueue>> queues);
  ~PushIntake();
  PushIntake(const PushIntake&) = delete;
  PushIntake& operator=(const PushIntake&) = delete;

  transport::EventQueue* queue(size_t index) { return queues_[index].get(); }

  // Takes pushes from it from now on. Closes an earlier connection of the same incarnation.
  void Add(std::shared_ptr<ClientConnection> connection);
  // Closes that incarnation's connection, if there is one.
  void Remove(uint64_t incarnation);
  int64_t connections() const;

  // Begins an attempt whose workers may wait for each other at layers (layer_barrier.h).
  void BeginBarriers(int64_t step, int64_t attempt, std::vector<uint64_t> workers);

 private:
  struct Work {
    std::shared_ptr<ClientConnection> connection;
    int64_t slot = 0;
  };

  void PollQueue(transport::EventQueue& queue, bool looks_over);
  void Help();
  void Dispatch(const transport::Event& event);
  void Enqueue(const std::shared_ptr<ClientConnection>& connection, int64_t slot);
  // Applies one waiting push; false if there is none.
  bool TakeOne();
  void LookOver();
  std::shared_ptr<ClientConnection> Find(uint64_t connection) const;
  void RingAll(const std::vector<LayerBarrier::Ring>& rings);
  void Forget(uint64_t connection, const absl::Status& why);

  const Options options_;
  const PushHandler handler_;
  ServerMetrics* const metrics_;
  const std::vector<std::unique_ptr<transport::EventQueue>> queues_;

  LayerBarrier barrier_;

  mutable absl::Mutex connections_mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<ClientConnection>> by_id_
      ABSL_GUARDED_BY(connections_mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<ClientConnection>> by_incarnation_
      ABSL_GUARDED_BY(connections_mutex_);
  // Connections that closed before they were added.
  absl::flat_hash_set<uint64_t> closed_early_ ABSL_GUARDED_BY(connections_mutex_);

  absl::Mutex work_mutex_;
  std::deque<Work> work_ ABSL_GUARDED_BY(work_mutex_);
  bool stopping_ ABSL_GUARDED_BY(work_mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace shoal::server
