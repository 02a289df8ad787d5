// A coordinator's core with a large job, whose members answer at once: what steps, waves and
// questions cost the coordinator itself, without threads and processes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/members/coordinator_metrics.h"
#include "server/coordinator/state/state_store.h"
#include "server/coordinator/testing/fake_job.h"

namespace shoal::server::testing {

class ManyMembers {
 public:
  struct Options {
    int servers = 64;         // of the job, at first
    int spares = 64;          // more, which it may be scaled to
    int workers = 1024;       // one that is a group each
    int partitions = 66'700;  // those of a model of 70B in 4 MiB
    int packs = 2;            // of each worker, in a step
    int64_t replicas = 1;
    bool read_replicas = false;
    int hosts = 16;         // over which all spread
    bool exchange = false;  // workers may exchange gradients among themselves
  };

  // All workers have joined, the first by the whole shard map and the others as if they knew it;
  // all have the work of the first step.
  explicit ManyMembers(const Options& options);
  ~ManyMembers();

  // So many servers, in waves that begin so long after each other, where a step takes a second;
  // other threads have not heard of it yet.
  void Scale(int servers, double seconds = 0.5);
  // All that there are, and they have.
  void ScaleToAll(double seconds = 0.5);
  proto::ScaleReply Scaling();
  // All workers but the last report the step at hand.
  void RunStep();
  // The last one does, and all ask until they have the work of the next step, for which those that
  // are told to join anew. Costs the coordinator's time and next to no other; what other threads
  // do, which plan steps and waves while workers compute, is not in it.
  void Barrier();

  // What a worker was answered when it joined, until it runs a step.
  const proto::JoinJobReply& join(int worker) const;
  // And if it knew that map.
  proto::JoinJobReply JoinKnowing(int worker, const proto::KnownMap& known);
  // That workers have asked: to join, and for work.
  int64_t questions() const { return questions_; }
  // Waves that were not planned while workers computed.
  int64_t planned_at_borders() const { return planned_at_borders_; }

 private:
  class Server;
  class Servers;
  struct Worker;

  LoadedJob MakeJob();
  uint64_t Register(proto::Role role, int index);
  void Answer();  // what servers are asked
  void Work();    // at that, and at what other threads are to do
  void Notice();
  static void LearnPart(Worker& worker);
  proto::JoinJobReply Join(const Worker& worker, const proto::KnownMap& known);
  // False: it is to ask again.
  bool Ask(Worker& worker);
  void FinishWork(Worker& worker) const;

  const Options options_;
  ManualClock clock_;
  Metrics metrics_;
  CoordinatorMetrics coordinator_metrics_{metrics_};
  std::unique_ptr<StateStore> store_ = MakeMemoryStateStore(/*cluster=*/1);
  FakeDisk disk_;
  std::deque<std::function<void()>> calls_;
  std::deque<std::function<void()>> later_;  // on other threads
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<CoordinatorCore> core_;
  absl::Time next_tick_;
  int64_t questions_ = 0;
  int64_t planned_at_borders_ = 0;
};

}  // namespace shoal::server::testing
