// A worker that does what the real WorkerCore says: it gets weights and pushes the gradient of each
// microbatch over a real client (data/sim_client.h), draws, and reports.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/contribution.h"
#include "tests/simulation/data/sim_client.h"
#include "tests/simulation/sim_member.h"
#include "tests/simulation/sim_servers.h"
#include "worker/job/worker_core.h"

namespace shoal::simulation {

// Of each worker.
inline constexpr double kPeakFlops = 1e5;

class SimWorker final : public SimMember {
 public:
  // For directed tests, and for what is checked over all workers.
  struct Observer {
    std::function<void(int index, const proto::JoinJobReply& reply)> on_join;
    std::function<void(int index, const proto::StepWork& work)> on_work;
    std::function<void()> on_draw;
    std::function<void(int index, proto::FinishedReport& report)> before_report;
    // Whether that worker still runs.
    std::function<bool(const proto::WorkerAddress& worker)> lives;
  };

  SimWorker(SimContext& context, const SimOptions& options, SimCoordinator& coordinator,
            SimServers& servers, std::unique_ptr<SimProcess> process, int index,
            const Observer& observer);

  void Drain(absl::Duration grace) override;

  // Of the job that it has part in.
  int stage() const { return core_->join().stage(); }
  int64_t formation() const { return core_->join().formation(); }
  // An incarnation: groups that join have no numbers of their own yet.
  uint64_t first_stage() const { return core_->join().stages(0).incarnation(); }
  // Of its connections by now.
  client::ClientStatistics client_statistics() const { return client_->statistics(); }
  // "job-7f3a09c4d21b run 0"
  std::string run_name() const {
    return fmt::format("{} run {}", core_->join().job_id(), core_->join().run());
  }

 protected:
  void OnRegistered() override;

 private:
  // A step under way. Answers for an earlier one find it gone.
  struct Step {
    proto::StepWork work;
    proto::FinishedReport report;
    int next = 0;           // microbatch to compute
    int64_t next_draw = 1;  // number
    bool drawing = false;
    bool all_computed = false;
    std::vector<float> weights;  // once they are there
    bool lacks_weights = false;  // and waits for them
    bool finishing = false;      // waits for its pushes
    bool finished = false;
    bool watched = false;  // it asks whether it is over, from time to time
  };

  bool draining() const { return core_->question().leaving(); }
  // What its core says is next.
  void Act();
  void ActAfterPause();
  void Join();
  void TakePart(const proto::JoinJobReply& join);
  // As ParameterClient::Create: tries until that time.
  void Connect(absl::Time until);
  void Ready();
  void FailUnlessLeftBehind(const absl::Status& status);
  void DropClient();
  // Something may have changed at the client.
  void OnTurn();
  void AskForStep();
  void Begin(const proto::StepWork& work);
  void Compute();
  void ComputePack();
  bool HasWeights();
  void EndComputing();
  void Push(const plan::Contribution& contribution, const std::vector<int64_t>& samples);
  // Runs it later if that step is still under way.
  void InStep(absl::Duration delay, std::function<void()> work);
  void Draw();
  void FinishStep();
  bool LacksANeighbour() const;
  void AskWhetherItIsOver(const std::shared_ptr<Step>& step);
  void Fail(bool by_neighbour, const std::string& why);
  void Report(proto::FinishedReport report);

  SimServers& servers_;
  const std::unique_ptr<SimProcess> owned_;
  const Observer& observer_;
  std::optional<worker::WorkerCore> core_;  // once it is registered
  SimJob* job_ = nullptr;                   // that it has part in
  std::unique_ptr<SimClient> client_;
  std::shared_ptr<Step> step_;
};

}  // namespace shoal::simulation
