// A whole cluster in one thread: the real CoordinatorCore, servers with real stores, workers with
// real clients that train a small model, a command line, and a network, clocks and disks that fail
// as a seed or a list says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/metrics.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/sim_command.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_coordinator.h"
#include "tests/simulation/sim_job.h"
#include "tests/simulation/sim_options.h"
#include "tests/simulation/sim_servers.h"
#include "tests/simulation/sim_store.h"
#include "tests/simulation/sim_worker.h"

namespace shoal::simulation {

class SimWorld {
  server::testing::FakeDisk own_disk_;
  SimContext context_;

 public:
  explicit SimWorld(const SimOptions& options) : SimWorld(options, own_disk_) {}
  // Uses a disk that an earlier world may have written to.
  SimWorld(const SimOptions& options, server::testing::FakeDisk& disk);
  SimWorld(const SimOptions& options, Faults faults)
      : SimWorld(options, own_disk_, std::move(faults)) {}

  // Runs until the jobs are over and all have left. False if that did not happen (a hang, or too
  // many events).
  bool Run();
  // Same as Run, with checks: returns Violations(), and whether it hung.
  std::vector<std::string> RunAndCheck();

  // Runs `action` when a point (SimContext::hook) is reached for the `nth` time.
  void At(const std::string& point, int nth, std::function<void()> action);
  void KillServer(int index) { server_members_[static_cast<size_t>(index)]->Kill(kNever); }
  void KillServer(int index, absl::Duration until_start) {
    server_members_[static_cast<size_t>(index)]->Kill(ToNanoseconds(until_start));
  }
  void KillWorker(int index) { worker(index).Kill(kNever); }
  void KillWorker(int index, absl::Duration until_start) {
    worker(index).Kill(ToNanoseconds(until_start));
  }
  void DrainWorker(int index, absl::Duration grace = absl::Minutes(1)) {
    worker(index).Drain(grace);
  }
  void DrainServer(int index) {
    server_members_[static_cast<size_t>(index)]->Drain(absl::ZeroDuration());
  }
  void Stop() { static_cast<void>(core().Stop("", "test")); }
  absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest& request) {
    context_.cancelled = context_.cancelled || request.cancel();
    return core().Scale(request);
  }

  EventLoop& loop;
  Hook& hook;
  server::testing::FakeDisk& disk;
  const std::unique_ptr<SimStore> store = std::make_unique<SimStore>();
  Metrics metrics;
  SimServers servers;

 private:
  const SimOptions options_;
  std::vector<std::unique_ptr<server::testing::FakeDisk>> more_disks_;
  std::vector<std::unique_ptr<SimJob>> jobs_;

 public:
  const server::testing::FakeSteps& steps;
  absl::Time over_at;    // when the job ended
  Lie lie = Lie::kNone;  // of worker 0, in step lie_step, that many times
  int64_t lie_step = 2;
  int lies_left = 1;
  double loss_of_step_2 = 0;  // if not zero, the loss that worker 0 reports for it

  server::CoordinatorCore& core() { return *coordinator().core(); }
  // The first one.
  SimJob& job() { return *jobs_.front(); }
  SimCoordinator& coordinator() { return successor_ == nullptr ? coordinator_ : *successor_; }
  bool has_successor() const { return context_.has_successor; }
  // Another coordinator begins, from what this one has recorded, which runs on that long at most.
  void Succeed(Nanoseconds until_end);
  const SimCommand& command() const { return command_; }
  uint64_t worker_incarnation(int index) const {
    return workers_[static_cast<size_t>(index)]->incarnation();
  }
  client::ClientStatistics client_statistics(int worker) const {
    return workers_[static_cast<size_t>(worker)]->client_statistics();
  }
  uint64_t server_incarnation(int index) const {
    return server_members_[static_cast<size_t>(index)]->incarnation();
  }
  const std::string& job_id() const { return command_.jobs().front().id; }
  // What happened.
  std::vector<proto::JobEvent> events();
  std::vector<proto::StepEvent> step_events();
  std::optional<proto::DoneEvent> done();
  std::optional<proto::FailedEvent> failed();
  std::string failure() { return failed().value_or(proto::FailedEvent()).message(); }
  int64_t works_given() const { return works_given_; }
  int64_t drawn() const { return drawn_; }  // microbatches
  int64_t run_events() const { return run_events_; }
  uint64_t trace() const { return context_.trace(); }
  const std::vector<Fault>& faults() const { return context_.faults.log(); }
  // Checks the invariants of any run, however it ended; returns what is violated.
  std::vector<std::string> Violations();
  // Of a run of any number of jobs.
  void CheckEnds();
  const std::vector<std::string>& violations() const { return context_.violations; }

 private:
  SimWorld(const SimOptions& options, server::testing::FakeDisk& disk, Faults faults);

  SimWorker& worker(int index) { return *workers_[static_cast<size_t>(index)]; }
  SimCoordinator::Loader Loader(SimStore& of);
  std::vector<std::unique_ptr<SimJob>> MakeJobs();
  void MakeMembers();
  void Observe();
  void Observe(SimCoordinator& coordinator, SimStore& records);
  // Null: there is no such job.
  SimJob* JobIn(const std::string& directory);
  void ForEachMember(const std::function<void(SimMember&)>& visit);
  void OnJoin(int index, const proto::JoinJobReply& reply);
  void OnWork(int index, const proto::StepWork& work);
  void Tell(int index, proto::FinishedReport& report);
  bool Over();
  void CheckDone(SimJob& job, const proto::DoneEvent& end);

  // sim_faults.cc
  SimProcess* ProcessNamed(const std::string& name);
  void Apply(const Fault& fault);
  void ApplyToLink(const Fault& fault);
  void Kill(const Fault& fault);

  std::unique_ptr<SimStore> copy_;  // the successor's
  SimCoordinator coordinator_;
  std::unique_ptr<SimCoordinator> successor_;
  SimCommand command_;
  Invariants invariants_;
  SimWorker::Observer observer_;
  std::vector<std::unique_ptr<SimMember>> server_members_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::map<uint64_t, std::pair<const SimProcess*, int64_t>> lives_;  // by incarnation
  // The work given to the first worker of a group: by run, step, attempt, round, group, formation.
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, uint64_t, int64_t>, std::string>
      given_;
  int64_t works_given_ = 0;
  int64_t drawn_ = 0;
  int64_t run_events_ = 0;
};

}  // namespace shoal::simulation
