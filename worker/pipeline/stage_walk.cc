#include "worker/pipeline/stage_walk.h"

#include <type_traits>
#include <utility>

#include "core/base/status.h"
#include "core/plan/schedule/schedule_queues.h"

namespace shoal::worker {

using plan::Action;
using plan::Holding;
using plan::Operation;

StageWalk::StageWalk(const StageRunnerOptions& options, const StageStep& step,
                     std::span<const int64_t> message_bytes, StagePools& pools, Stream& offloads,
                     Stream& reloads, std::function<absl::Status()> cancelled)
    : options_(options),
      step_(step),
      shape_(step.schedule->shape),
      message_bytes_(message_bytes),
      pools_(pools),
      offload_stream_(offloads),
      reload_stream_(reloads),
      cancelled_(std::move(cancelled)),
      offloads_(static_cast<size_t>(shape_.chunks) * shape_.microbatches),
      reloads_(offloads_.size()),
      timing_(options.device->asynchronous() ? options.compute : nullptr, *options.clock,
              *options.time_kinds, shape_) {}

template <typename Wait>
auto StageWalk::Waiting(const Awaited& awaited, const Wait& wait) {
  auto result = timing_.Waiting(awaited, wait);
  const absl::Status status = [&] {
    if constexpr (std::is_same_v<decltype(result), absl::Status>) {
      return result;
    } else {
      return result.status();
    }
  }();
  if (!status.ok()) {
    result =
        Annotate(status, fmt::format("stage {} waits for {}", options_.stage, NameOf(awaited)));
  }
  return result;
}

absl::Status StageWalk::Run() {
  for (const Action& action : step_.schedule->stages[options_.stage]) {
    SHOAL_RETURN_IF_ERROR(cancelled_());
    options_.time_kinds->AtMicrobatch(action.microbatch);
    SHOAL_RETURN_IF_ERROR(Execute(action));
  }
  return absl::OkStatus();
}

absl::Status StageWalk::AwaitSent() {
  return Waiting(
      {.what = Awaited::What::kArrival, .action = step_.schedule->stages[options_.stage].back()},
      [&] { return step_.links->EndStep(options_.wait_timeout); });
}

absl::Status StageWalk::At(const Action& action, const absl::Status& status) const {
  return status.ok()
             ? status
             : Annotate(status, fmt::format("stage {}, {}", options_.stage, NameOf(action)));
}

absl::Status StageWalk::Execute(const Action& action) {
  if (IsCompute(action.operation)) {
    return Compute(action);
  }
  if (IsSend(action.operation)) {
    return Send(action);
  }
  if (IsReceive(action.operation)) {
    return At(action, step_.links->Post(ReceivedBy(action)));
  }
  const plan::ActionMoves moves = MovesOf(shape_, options_.stage, action);
  SHOAL_RETURN_IF_ERROR(pools_.Make(moves.before()));
  if (action.operation == Operation::kRelease) {
    SHOAL_RETURN_IF_ERROR(AwaitCopy(action, Awaited::What::kOffload));
  } else if (action.operation != Operation::kPrepare) {
    SHOAL_RETURN_IF_ERROR(StartCopy(action));
  }
  return pools_.Make(moves.after());
}

absl::Status StageWalk::Send(const Action& action) {
  const StageMessage message = SentBy(action);
  SHOAL_RETURN_IF_ERROR(At(action, step_.links->Send(message)));
  traffic_[message.peer].sent_bytes += message_bytes_[static_cast<size_t>(action.microbatch)];
  return absl::OkStatus();
}

absl::Status StageWalk::Compute(const Action& action) {
  SHOAL_ASSIGN_OR_RETURN(const std::byte* const input, Input(action));
  if (IsBackwardForInput(action.operation)) {
    SHOAL_RETURN_IF_ERROR(AwaitCopy(action, Awaited::What::kReload));
  }
  const plan::ActionMoves moves = MovesOf(shape_, options_.stage, action);
  SHOAL_RETURN_IF_ERROR(pools_.Make(moves.before()));
  SHOAL_ASSIGN_OR_RETURN(std::byte* const output, Output(action));
  SHOAL_RETURN_IF_ERROR(
      At(action, timing_.Computing(action, [&] { return Call(action, input, output); })));
  if (const Action received = UsedBy(shape_, options_.stage, action);
      IsReceive(received.operation)) {
    const StageMessage used = ReceivedBy(received);
    SHOAL_RETURN_IF_ERROR(At(action, step_.links->Consumed(used)));
    traffic_[used.peer].received_bytes += message_bytes_[static_cast<size_t>(used.microbatch)];
  }
  return pools_.Make(moves.after());
}

absl::Status StageWalk::Call(const Action& action, const std::byte* input, std::byte* output) {
  StageModel& model = *options_.model;
  const auto [operation, chunk, microbatch] = action;
  const bool evaluates = step_.schedule->evaluates;
  if (!evaluates) {
    step_.sink->AtPack(step_.packs.empty() ? microbatch
                                           : step_.packs[static_cast<size_t>(microbatch)]);
  }
  std::byte* const activations = pools_.Of(Holding::kActivations, chunk, microbatch);
  std::byte* const gradients = pools_.Of(Holding::kGradients, chunk, microbatch);
  switch (operation) {
    case Operation::kForward:
      SHOAL_RETURN_IF_ERROR(model.Forward(chunk, microbatch, activations, input, output));
      return evaluates && output == nullptr ? model.Loss(chunk, microbatch, activations)
                                            : absl::OkStatus();
    case Operation::kBackwardInput:
      return model.BackwardInput(chunk, microbatch, activations, gradients, input, output);
    case Operation::kBackwardWeights:
      return model.BackwardWeights(chunk, microbatch, activations, gradients);
    default:
      return model.Backward(chunk, microbatch, activations, input, output);
  }
}

// Returns null if there is none.
absl::StatusOr<const std::byte*> StageWalk::Input(const Action& action) {
  if (const Action received = UsedBy(shape_, options_.stage, action);
      IsReceive(received.operation)) {
    const StageMessage message = ReceivedBy(received);
    return Waiting({.what = Awaited::What::kMessage, .action = action, .message = message},
                   [&] { return step_.links->Await(message, options_.wait_timeout); });
  }
  if (action.operation == Operation::kForward) {
    return pools_.Of(Holding::kInput, action.chunk, action.microbatch);
  }
  return IsBackwardForInput(action.operation)
             ? pools_.Of(Holding::kOutputGradient, action.chunk, action.microbatch)
             : nullptr;
}

// Returns null if there is none. Within the stage, output goes to the next user's memory.
absl::StatusOr<std::byte*> StageWalk::Output(const Action& action) {
  if (const Action sent = MadeBy(shape_, options_.stage, action); IsSend(sent.operation)) {
    const StageMessage message = SentBy(sent);
    return Waiting({.what = Awaited::What::kRoom, .action = action, .message = message},
                   [&] { return step_.links->Reserve(message, options_.wait_timeout); });
  }
  const int here = shape_.VirtualStageOf(options_.stage, action.chunk);
  if (action.operation == Operation::kForward && here + 1 < shape_.VirtualStages()) {
    return pools_.Of(Holding::kInput, shape_.At(here + 1).chunk, action.microbatch);
  }
  return IsBackwardForInput(action.operation) && here > 0
             ? pools_.Of(Holding::kOutputGradient, shape_.At(here - 1).chunk, action.microbatch)
             : nullptr;
}

absl::Status StageWalk::StartCopy(const Action& action) {
  const bool offload = action.operation == Operation::kOffload;
  Stream& stream = offload ? offload_stream_ : reload_stream_;
  Copy& copy = (offload ? offloads_ : reloads_)[KeyOf(action)];
  copy.kind = offload ? StageSpan::Kind::kOffload : StageSpan::Kind::kReload;
  copy.action = action;
  std::byte* const device = pools_.Of(Holding::kActivations, action.chunk, action.microbatch);
  std::byte* const host = pools_.Of(Holding::kHostCopy, action.chunk, action.microbatch);
  if (device == nullptr) {
    return absl::OkStatus();  // there are no bytes
  }
  stream.WaitFor(*options_.compute->Record());
  if (step_.record_spans) {
    copy.begin = stream.Record();
  }
  stream.Copy(offload ? host : device, offload ? device : host,
              pools_.BytesOf(Holding::kActivations, action.chunk, action.microbatch));
  copy.end = stream.Record();
  return absl::OkStatus();
}

absl::Status StageWalk::AwaitCopy(const Action& action, Awaited::What copy) {
  Event* const copied =
      (copy == Awaited::What::kOffload ? offloads_ : reloads_)[KeyOf(action)].end.get();
  if (copied == nullptr) {
    return absl::OkStatus();
  }
  if (copied->WaitDone(absl::ZeroDuration())) {
    return At(action, copied->Wait());
  }
  const Awaited awaited = {.what = copy, .action = action};
  if (options_.device->asynchronous()) {
    return Waiting(awaited, [&] {
      options_.compute->WaitFor(*copied);
      return absl::OkStatus();
    });
  }
  SHOAL_RETURN_IF_ERROR(Waiting(awaited, [&] { return AwaitEvent(*copied, "the copy"); }));
  return At(action, copied->Wait());
}

absl::Status StageWalk::AwaitEvent(Event& event, std::string_view what) const {
  const absl::Time deadline = options_.clock->Now() + options_.wait_timeout;
  while (!event.WaitDone(kLookAgain)) {
    SHOAL_RETURN_IF_ERROR(cancelled_());
    if (options_.clock->Now() >= deadline) {
      return DeadlineExceeded("{} did not end within {}", what,
                              absl::FormatDuration(options_.wait_timeout));
    }
  }
  return absl::OkStatus();
}

absl::Status StageWalk::AwaitDevice() {
  const TimeKindClock::Scope computing(*options_.time_kinds, TimeKind::kBackward);
  if (options_.device->asynchronous()) {
    SHOAL_RETURN_IF_ERROR(AwaitEvent(*options_.compute->Record(), "what was put on the device"));
    for (const std::vector<Copy>* copies : {&offloads_, &reloads_}) {
      for (const Copy& copy : *copies) {
        if (copy.end != nullptr) {
          SHOAL_RETURN_IF_ERROR(At(copy.action, copy.end->Wait()));
        }
      }
    }
  }
  return options_.model->EndStep();
}

StageMessage StageWalk::SentBy(const Action& action) const {
  const bool gradient = IsGradientMessage(action.operation);
  const int here = shape_.VirtualStageOf(options_.stage, action.chunk);
  const plan::VirtualStage to = shape_.At(gradient ? here - 1 : here + 1);
  return {to.stage, gradient, to.chunk, action.microbatch};
}

StageMessage StageWalk::ReceivedBy(const Action& action) const {
  const bool gradient = IsGradientMessage(action.operation);
  const int here = shape_.VirtualStageOf(options_.stage, action.chunk);
  return {shape_.At(gradient ? here + 1 : here - 1).stage, gradient, action.chunk,
          action.microbatch};
}

void StageWalk::FillReport(StageReport& report) const {
  report.traffic = traffic_;
  timing_.Fill(report, step_.record_spans);
  for (const std::vector<Copy>* copies : {&offloads_, &reloads_}) {
    for (const Copy& copy : *copies) {
      if (copy.begin != nullptr) {
        report.spans.push_back(
            {copy.kind, copy.action, copy.begin->at(), copy.end->at() - copy.begin->at()});
      }
    }
  }
}

}  // namespace shoal::worker
