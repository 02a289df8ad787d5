// The walk of one stage through its list in one step: StageRunner runs it once the schedule is
// checked and the pools are reserved. Only worker/pipeline includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/pipeline/stage_runner.h"
#include "worker/pipeline/stage_timing.h"

namespace shoal::worker {

class StageWalk {
 public:
  // `message_bytes`: of each, by microbatch. `cancelled` returns whether the walk must end, and
  // why.
  StageWalk(const StageRunnerOptions& options, const StageStep& step,
            std::span<const int64_t> message_bytes, StagePools& pools, Stream& offloads,
            Stream& reloads, std::function<absl::Status()> cancelled);

  absl::Status Run();
  // Call after the walk: waits until all messages have arrived.
  absl::Status AwaitSent();
  // Call last: waits until everything put on the device is done.
  absl::Status AwaitDevice();
  // Fills in messages, times and spans of the step.
  void FillReport(StageReport& report) const;

 private:
  struct Copy {
    StageSpan::Kind kind = StageSpan::Kind::kOffload;
    plan::Action action;
    std::unique_ptr<Event> begin;  // where spans are recorded
    std::unique_ptr<Event> end;
  };

  // Adds to an error where it happened.
  absl::Status At(const plan::Action& action, const absl::Status& status) const;
  absl::Status Execute(const plan::Action& action);
  absl::Status Send(const plan::Action& action);
  absl::Status Compute(const plan::Action& action);
  absl::Status Call(const plan::Action& action, const std::byte* input, std::byte* output);
  absl::StatusOr<const std::byte*> Input(const plan::Action& action);
  absl::StatusOr<std::byte*> Output(const plan::Action& action);
  absl::Status StartCopy(const plan::Action& action);
  // Waits for that copy of the action's (chunk, microbatch), if one was started: what comes next,
  // here or on the compute stream, comes after it.
  absl::Status AwaitCopy(const plan::Action& action, Awaited::What copy);
  // Fails if the step is cancelled meanwhile, or if it takes longer than a wait may.
  absl::Status AwaitEvent(Event& event, std::string_view what) const;

  // The message of an action that sends or receives.
  StageMessage SentBy(const plan::Action& action) const;
  StageMessage ReceivedBy(const plan::Action& action) const;

  // Adds to an error what was waited for.
  template <typename Wait>
  auto Waiting(const Awaited& awaited, const Wait& wait);
  size_t KeyOf(const plan::Action& action) const {
    return static_cast<size_t>(action.chunk) * shape_.microbatches + action.microbatch;
  }

  const StageRunnerOptions& options_;
  const StageStep& step_;
  const plan::ScheduleShape& shape_;
  const std::span<const int64_t> message_bytes_;
  StagePools& pools_;
  Stream& offload_stream_;
  Stream& reload_stream_;
  const std::function<absl::Status()> cancelled_;

  std::vector<Copy> offloads_;  // by KeyOf
  std::vector<Copy> reloads_;
  std::map<int, StageReport::Traffic> traffic_;
  StageTiming timing_;
};

}  // namespace shoal::worker
