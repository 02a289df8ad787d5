// The command line: submits jobs, follows each to its end over any number of lost connections, and
// stops them where it is told to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_coordinator.h"
#include "tests/simulation/sim_job.h"

namespace shoal::simulation {

class SimCommand {
 public:
  SimCommand(SimContext& context, SimCoordinator& coordinator);

  void Submit(SimJob& job);
  void Stop(size_t job);
  void Scale(size_t job, int64_t servers, int64_t rate);
  void Remove(int server);

  struct Followed {
    SimJob* job;
    std::string id;        // once it is known
    std::string refused;   // why it was not taken
    int64_t seen = 0;      // event
    int64_t term = 0;      // of that event
    int64_t sent_by = 0;   // term of the coordinator that sent it
    proto::JobEvent step;  // the last one
    int64_t held = 0;      // the last step of its run: servers have it, and maybe nobody else
    bool stopped = false;  // by this command line
    bool lost = false;     // the coordinator knows nothing of it any more
    std::optional<proto::JobEvent> end;
    Nanoseconds ended = 0;  // when that was heard
    bool over() const { return end.has_value() || lost || !refused.empty(); }
  };
  const std::vector<Followed>& jobs() const { return jobs_; }
  bool AllOver() const;

 private:
  void Ask(const proto::ScaleRequest& request);
  void OnSubmitted(size_t job, const absl::StatusOr<proto::SubmitJobReply>& reply);
  void Watch(size_t job);
  void OnWatched(size_t job, const absl::StatusOr<Watched>& reply);
  // `sent_by`: term of the coordinator.
  void Take(Followed& job, int64_t sent_by, const proto::JobEvent& event);
  void CheckStep(Followed& job, int64_t term, const proto::StepEvent& step);
  void CheckHeld(const Followed& job, const std::string& why);

  SimContext& context_;
  SimCoordinator& coordinator_;
  SimProcess process_;
  std::vector<Followed> jobs_;
};

}  // namespace shoal::simulation
