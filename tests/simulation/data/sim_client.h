// A simulated worker's client: the real client::Session, which takes its turns when something has
// come for it or is due. Nothing waits: whoever wants something asks again in `on_turn`.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/options.h"
#include "client/session.h"
#include "core/model/contribution.h"
#include "core/transport/transport.h"
#include "proto/coordinator.pb.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_servers.h"

namespace shoal::simulation {

class SimClient final : public client::ServerClient, public client::GradientReturn {
 public:
  // Of a worker that has joined a job.
  SimClient(SimContext& context, SimServers& servers, SimProcess& process, SimJob& job,
            const proto::JoinJobReply& join, uint64_t incarnation);
  ~SimClient() override = default;

  // Connects to all servers. Unavailable: try again.
  absl::Status Start();
  // As worker::WorkerJob does: goes on with its connections. False: another is to be made.
  bool Follow(const proto::JoinJobReply& join);
  // Asks for all weights of the version before that step.
  absl::Status BeginStep(int64_t step, int64_t attempt);
  // All weights, unit by unit; nullopt: they are not all there yet.
  absl::StatusOr<std::optional<std::vector<float>>> Weights();
  // For all units, each in turn as there is room.
  void Push(std::vector<float> gradient, const plan::Contribution& contribution);
  // Of those, whether all are acknowledged.
  bool Acknowledged(int64_t pack) const;
  // DeadlineExceeded: not yet.
  absl::Status Finish();
  bool LacksServer() const { return session_->LacksServer(); }
  client::ClientStatistics statistics() const { return session_->statistics(); }

  // For the session.
  absl::StatusOr<proto::ConnectReply> Connect(int server, const proto::ConnectRequest& request,
                                              absl::Duration timeout) override;
  void Cancel() override {}
  void Returned(int /*unit*/, const void* gradient) override { gradients_.erase(gradient); }

  // Something may have changed.
  std::function<void()> on_turn = [] {};

 private:
  struct Waiting {
    int unit = 0;
    plan::Contribution contribution;
    std::vector<float> gradient;
  };

  void Turn();
  void TurnAt(absl::Time time);
  void PushWaiting();
  SimProcess& ServerAtIndex(int server);

  SimContext& context_;
  SimServers& servers_;
  SimProcess& process_;
  SimJob& job_;
  const proto::JoinJobReply join_;
  const std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<client::Session> session_;
  bool started_ = false;
  absl::Status failure_;  // of this step's pushes
  std::deque<Waiting> waiting_;
  std::map<const void*, std::vector<float>> gradients_;  // that may be read still
  Nanoseconds turn_at_ = kNever;
  const std::shared_ptr<void> here_ = std::make_shared<bool>();
};

}  // namespace shoal::simulation
