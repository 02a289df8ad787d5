// A coordinator's process: the real CoordinatorCore, and around it what Coordinator does with
// threads: calls that wait, deadlines, background work in order, and going on with what an earlier
// life recorded. Of two at once, callers reach the later one, but for those whose connection to the
// earlier one still stands.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/metrics.h"
#include "server/coordinator/coordinator_core.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_options.h"
#include "tests/simulation/sim_process.h"
#include "tests/simulation/sim_servers.h"
#include "tests/simulation/sim_store.h"

namespace shoal::simulation {

// What a watcher of a job's events is sent.
struct Watched {
  int64_t term = 0;  // of the coordinator
  std::vector<proto::JobEvent> events;
};

class SimCoordinator {
 public:
  // Reads what a submitted job needs, as JobLoader does.
  using Loader = std::function<server::LoadedJob(const proto::SubmitJobRequest&)>;
  template <typename Result>
  using Done = std::function<void(absl::StatusOr<Result>)>;

  SimCoordinator(SimContext& context, const SimOptions& options, SimStore& store,
                 SimServers& servers, Loader loader, Metrics& metrics, int process = 0);

  void Start();
  SimProcess& process() { return process_; }
  // Null while it does not live.
  server::CoordinatorCore* core() { return core_.get(); }
  int64_t term() const { return term_; }
  // That it has told to have moved.
  double moved_bytes() const { return metrics_.moved_bytes.Value(); }

  // Calls from another process.
  void Submit(SimProcess& from, const proto::SubmitJobRequest& request,
              Done<proto::SubmitJobReply> done);
  void Stop(SimProcess& from, const std::string& job_id, Done<proto::StopJobReply> done);
  void Watch(SimProcess& from, const std::string& job_id, int64_t after_event, int64_t term,
             Done<Watched> done);
  template <typename Request, typename Reply>
  void Ask(SimProcess& from, absl::Duration deadline, Request request,
           absl::StatusOr<Reply> (server::CoordinatorCore::*method)(const Request&),
           Done<Reply> done);
  // A call of a member's that is over when its connection breaks; `done` gets why.
  void HoldConnection(SimProcess& from, uint64_t incarnation,
                      Done<proto::HoldConnectionReply> done);
  // Those of this process do.
  void BreakConnections(const SimProcess& from);
  // Waits at the coordinator as long as the request says, and then for nothing in particular.
  template <typename Request, typename Reply>
  void AskAndWait(
      SimProcess& from, absl::Duration deadline, Request request,
      absl::StatusOr<std::optional<Reply>> (server::CoordinatorCore::*method)(const Request&),
      Done<Reply> done);

  // Has begun from a copy of what this one recorded; null: none.
  SimCoordinator* successor = nullptr;
  // Hears what was answered to a member while jobs go on.
  std::function<void(int64_t term, uint64_t incarnation, const absl::Status&)> on_answered =
      [](int64_t, uint64_t, const absl::Status&) {};
  // A member of which it had no record has said who it is.
  std::function<void(int64_t term, uint64_t incarnation)> on_came_back = [](int64_t, uint64_t) {};
  std::function<void(int64_t term)> on_started = [](int64_t) {};
  std::function<void(int64_t term, const std::string& job_id)> on_stopped =
      [](int64_t, const std::string&) {};

 private:
  // Looks again; returns whether it is answered. `expired`: it has waited long enough.
  using Look = std::function<bool(bool expired)>;

  struct Held {
    const SimProcess* from;
    uint64_t incarnation;
    std::function<void(absl::StatusOr<proto::HoldConnectionReply>)> answer;
  };

  template <typename Request>
  void Tell(const Request& request, const absl::Status& status) {
    if constexpr (std::is_same_v<Request, proto::RegisterRequest>) {
      if (request.has_earlier() && status.ok()) {
        on_came_back(term_, request.earlier().incarnation());
      }
    } else if constexpr (requires { request.incarnation(); } &&
                         !std::is_same_v<Request, proto::LeaveRequest>) {
      if (core_ != nullptr && !core_->ended()) {
        on_answered(term_, request.incarnation(), status);
      }
    }
  }
  SimCoordinator& ReachedBy(const SimProcess& from);
  void CheckNothingIsMissed(const server::EventLog& log, int64_t after, int64_t term) const;
  void TakeUp(server::SavedJob saved, bool goes_on);
  absl::Status Resume(const server::SavedJob& saved);
  // Runs functions in order, each after a delay.
  server::Executor InOrder(bool disk);
  void Wait(absl::Duration at_most, Look look);
  void AfterEach();
  void Tick();
  void OnReached(const char* point);
  void OnSuperseded(const absl::Status& why);
  void OnEnd();

  SimContext& context_;
  const SimOptions& options_;
  SimStore& store_;
  SimServers& servers_;
  const Loader loader_;
  server::CoordinatorMetrics metrics_;
  SimProcess process_;
  std::unique_ptr<server::CoordinatorCore> core_;
  std::list<std::shared_ptr<Look>> waiting_;
  std::vector<Held> held_;
  std::map<int, bool> connected_;  // by process, once there is a successor
  int64_t term_ = 0;
  int crashes_ = 0;  // at named points
  int64_t seen_changes_ = 0;
  Nanoseconds tick_at_ = kNever;
};

template <typename Request, typename Reply>
void SimCoordinator::Ask(SimProcess& from, absl::Duration deadline, Request request,
                         absl::StatusOr<Reply> (server::CoordinatorCore::*method)(const Request&),
                         Done<Reply> done) {
  if (SimCoordinator& other = ReachedBy(from); &other != this) {
    other.Ask(from, deadline, std::move(request), method, std::move(done));
    return;
  }
  context_.network.Call<Reply>(
      from, process_, {.deadline = deadline},
      [this, request = std::move(request), method](const auto& answer) {
        auto reply = (core_.get()->*method)(request);
        Tell(request, reply.status());
        answer(std::move(reply));
      },
      std::move(done));
}

template <typename Request, typename Reply>
void SimCoordinator::AskAndWait(
    SimProcess& from, absl::Duration deadline, Request request,
    absl::StatusOr<std::optional<Reply>> (server::CoordinatorCore::*method)(const Request&),
    Done<Reply> done) {
  if (SimCoordinator& other = ReachedBy(from); &other != this) {
    other.AskAndWait(from, deadline, std::move(request), method, std::move(done));
    return;
  }
  context_.network.Call<Reply>(
      from, process_, {.deadline = deadline},
      [this, request = std::move(request), method](const auto& answer) {
        Wait(absl::Seconds(request.wait_seconds()),
             [this, request, method, answer](bool expired) mutable {
               auto reply = (core_.get()->*method)(request);
               Tell(request, reply.status());
               if (!reply.ok()) {
                 answer(reply.status());
                 return true;
               }
               if (reply->has_value() || expired) {
                 Reply nothing;
                 nothing.set_term(term_);
                 answer(std::move(*reply).value_or(std::move(nothing)));
                 return true;
               }
               // The first look takes the worker's report.
               if constexpr (requires { request.clear_finished(); }) {
                 request.clear_finished();
               }
               return false;
             });
      },
      std::move(done));
}

}  // namespace shoal::simulation
