// The walk of one stage through its list in one step: what StageRunner runs once the schedule is
// checked and the pools are reserved. Included by worker/pipeline alone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/pipeline/stage_runner.h"

namespace shoal::worker {

class StageWalk {
 public:
  // `cancelled` tells whether the walk is to end, and why.
  StageWalk(const StageRunnerOptions& options, const StageStep& step, StagePools& pools,
            Stream& offloads, Stream& reloads, std::function<absl::Status()> cancelled);

  absl::Status Run();
  // Behind it: until all messages have arrived.
  absl::Status AwaitSent();
  // Stalls and spans, of the walk so far.
  void FillReport(StageReport& report) const;

 private:
  // Names what is waited for, once it is worth a name.
  using NameOfWait = std::function<std::string()>;
  struct Copy {
    StageSpan::Kind kind = StageSpan::Kind::kOffload;
    plan::Action action;
    std::unique_ptr<Event> begin;  // where spans are recorded
    std::unique_ptr<Event> end;
  };

  // An error says where it happened.
  absl::Status At(const plan::Action& action, const absl::Status& status) const;
  absl::Status Execute(const plan::Action& action);
  absl::Status Compute(const plan::Action& action);
  absl::Status Call(const plan::Action& action, const std::byte* input, std::byte* output);
  absl::StatusOr<const std::byte*> Input(const plan::Action& action);
  absl::StatusOr<std::byte*> Output(const plan::Action& action);
  absl::Status StartCopy(const plan::Action& action);
  // Of the action's (chunk, microbatch), where such a copy was started.
  absl::Status AwaitCopy(const plan::Action& action, StageSpan::Kind kind);

  // What a compute action uses of, and makes for, another virtual stage: its message, if that is on
  // another stage.
  bool Uses(const plan::Action& action, StageMessage& message) const;
  bool Makes(const plan::Action& action, StageMessage& message) const;
  StageMessage SentBy(const plan::Action& action) const;
  StageMessage ReceivedBy(const plan::Action& action) const;

  // `peer`: the stage that is waited for; -1: none in particular.
  template <typename Wait>
  auto Timed(Stall stall, int peer, const plan::Action& action, const NameOfWait& name,
             const Wait& wait);
  double computed() const;
  void AddSpan(StageSpan::Kind kind, const plan::Action& action, absl::Time begin);
  size_t KeyOf(const plan::Action& action) const {
    return static_cast<size_t>(action.chunk) * shape_.microbatches + action.microbatch;
  }

  const StageRunnerOptions& options_;
  const StageStep& step_;
  const plan::ScheduleShape& shape_;
  StagePools& pools_;
  Stream& offload_stream_;
  Stream& reload_stream_;
  const std::function<absl::Status()> cancelled_;

  std::vector<Copy> offloads_;  // by KeyOf
  std::vector<Copy> reloads_;
  std::array<StallTime, kStalls> stalls_;
  std::vector<double> neighbour_seconds_;   // by stage
  std::vector<double> microbatch_seconds_;  // of compute
  std::vector<StageSpan> spans_;
};

}  // namespace shoal::worker
