// A whole job in one thread: the real CoordinatorCore, fake servers and workers, simulated time,
// and faults from a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/metrics.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/testing/event_loop.h"
#include "server/coordinator/testing/fake_job.h"
#include "server/coordinator/testing/fake_servers.h"

namespace shoal::server::testing {

// Of each worker.
inline constexpr double kPeakFlops = 1e5;

struct SimOptions {
  uint64_t seed = 1;
  int servers = 2;
  int workers = 3;
  int stages = 1;                   // per worker group
  bool addresses = true;            // workers register with addresses
  bool hosts_and_loopback = false;  // each on its own host, with an address valid only there
  int64_t steps = 5;
  int64_t stop_after = 0;  // LoadedJob::last_step, 0: steps
  int64_t samples = 8;     // per step
  int64_t checkpoint_every = 2;
  double checkpoint_seconds = 0;
  bool resume = false;
  bool draw = false;   // plan.assignment: dynamic
  bool layer = false;  // train.synchronization: layer
  bool trace = false;
  // Probabilities, each per occasion.
  // A worker misses the answer of NextStep or DrawMicrobatch and asks again.
  double lost_reply = 0;
  double repeated_report = 0;  // the report arrives a second time, later
  double failed_report = 0;    // the worker reports that it failed
  double slow_worker = 0;      // takes a hundred times longer
  double early_report = 0;     // the worker leaves some of its own work undrawn
};

// How a worker lies, for directed tests.
enum class Lie { kNone, kTargets, kMicrobatches, kPushes, kServers };

class SimWorld {
  FakeDisk own_disk_;

 public:
  explicit SimWorld(const SimOptions& options) : SimWorld(options, own_disk_) {}
  // Uses a disk that an earlier world may have written to.
  SimWorld(const SimOptions& options, FakeDisk& disk);

  // Runs until the job is over and all have left. False if that did not happen (a hang, or too many
  // events).
  bool Run();
  // Same as Run, with checks: returns Violations(), and whether it hung.
  std::vector<std::string> RunAndCheck();

  // Runs `action` when a point (fake_servers.h) is reached for the `nth` time.
  void At(const std::string& point, int nth, std::function<void()> action);
  void KillServer(int index);
  void KillWorker(int index);
  void Stop() { static_cast<void>(core_->Stop("", "test")); }

  EventLoop loop;
  FakeDisk& disk;
  std::unique_ptr<StateStore> store = MakeMemoryStateStore();
  FakeServers servers;
  FakeSteps steps;
  Metrics metrics;
  absl::Time over_at;    // when the job ended
  Lie lie = Lie::kNone;  // of worker 0, in step lie_step, that many times
  int64_t lie_step = 2;
  int lies_left = 1;
  double loss_of_step_2 = 0;  // if not zero, the loss that worker 0 reports for it

  CoordinatorCore& core() { return *core_; }
  uint64_t worker_incarnation(int index) const {
    return workers_[static_cast<size_t>(index)].incarnation;
  }
  const std::string& job_id() const { return job_id_; }
  // What happened.
  std::vector<proto::JobEvent> events() const;
  std::vector<proto::StepEvent> step_events() const;
  std::optional<proto::DoneEvent> done() const;
  std::optional<proto::FailedEvent> failed() const;
  std::string failure() const { return failed().value_or(proto::FailedEvent()).message(); }
  int64_t works_given() const { return works_given_; }
  int64_t drawn() const { return drawn_; }  // microbatches
  // Checks the invariants of any run, however it ended; returns what is violated.
  std::vector<std::string> Violations() const;

 private:
  struct Process {
    bool alive = true;
    bool present = false;  // registered and not left
    uint64_t incarnation = 0;
  };
  struct Worker : Process {
    bool joined = false;
    int group = 0;
    int stage = 0;
    bool waiting = false;  // for an answer of JoinJob or NextStep
    std::optional<proto::FinishedReport> report;
  };

  void Submit();
  void RegisterServer(int index);
  void RegisterWorker(int index);
  void Register(Process& process, proto::RegisterRequest request);
  void Renew(Process& process);
  void Ask(int index);
  void Work(int index, const proto::StepWork& work);
  void CheckPeers(int index, const proto::JoinJobReply& reply);
  void CheckGroup(int index, const proto::StepWork& work);
  void PushAndReport(int index, const proto::StepWork& work, size_t microbatch,
                     proto::FinishedReport report, int64_t next_draw = 1);
  void DrawNext(int index, proto::StepWork work, int64_t number, proto::FinishedReport report);
  void Report(int index, proto::FinishedReport report);
  void Tell(proto::FinishedReport& report);
  void WakeWaiting();
  bool Chance(double probability) { return loop.random().Uniform() < probability; }

  const SimOptions options_;
  CoordinatorMetrics coordinator_metrics_;
  std::unique_ptr<CoordinatorCore> core_;
  std::vector<Process> server_processes_;
  std::vector<Worker> workers_;
  // The work given to the first worker of a group: by step, attempt, group.
  std::map<std::tuple<int64_t, int64_t, int>, std::string> given_;
  std::string job_id_;  // after submission
  int64_t seen_changes_ = 0;
  int64_t works_given_ = 0;
  int64_t drawn_ = 0;
};

}  // namespace shoal::server::testing
