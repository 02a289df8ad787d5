#include "worker/pipeline/stage_runner.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/schedule/schedule_check.h"
#include "worker/pipeline/links/communicator_links.h"
#include "worker/pipeline/links/device_links.h"
#include "worker/pipeline/stage_walk.h"

namespace shoal::worker {
namespace {

bool Same(const plan::Schedule& a, const plan::Schedule& b) {
  return a.shape == b.shape && a.stages == b.stages && a.evaluates == b.evaluates;
}

}  // namespace

StageRunner::StageRunner(const StageRunnerOptions& options)
    : options_(options),
      offloads_(options.device->NewStream(StreamKind::kCopy)),
      own_reloads_(options.duplex ? options.device->NewStream(StreamKind::kCopy) : nullptr),
      pools_(options.stage, *options.device, *options.host,
             options.poison ? options.compute : nullptr),
      device_links_(MakeDeviceLinks()) {}

StageRunner::~StageRunner() { Disconnect(); }

std::unique_ptr<AttachedLinks> StageRunner::MakeDeviceLinks() {
  if (!options_.device->asynchronous()) {
    return nullptr;
  }
  if (options_.collectives == nullptr) {
    return std::make_unique<DeviceLinks>(*options_.device, *options_.compute);
  }
  const auto check = [this] {
    absl::Status status = cancelled();
    return status.ok() && options_.check ? options_.check() : status;
  };
  return std::make_unique<CommunicatorLinks>(
      CommunicatorLinks::Options{.stage = options_.stage,
                                 .device = options_.device,
                                 .compute = options_.compute,
                                 .collectives = options_.collectives,
                                 .timeout = options_.wait_timeout,
                                 .check = check,
                                 .poison = options_.poison});
}

void StageRunner::Disconnect() {
  if (device_links_ != nullptr) {
    device_links_->Disconnect();
  }
}

absl::StatusOr<StageReport> StageRunner::RunStep(const StageStep& step) {
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_.ok()) {
      links_ = step.links;
    }
  }
  absl::StatusOr<StageReport> report = Run(step);
  lost_neighbour_ = !report.ok() && step.links != nullptr && !step.links->status().ok();
  if (!report.ok() && step.links != nullptr) {
    step.links->Close(report.status());
  }
  absl::MutexLock lock(&mutex_);
  links_ = nullptr;
  return report;
}

absl::StatusOr<StageReport> StageRunner::Run(StageStep step) {
  SHOAL_RETURN_IF_ERROR(cancelled());
  const TimeKindClock::Scope preparing(*options_.time_kinds, TimeKind::kData);
  SHOAL_RETURN_IF_ERROR(Check(step));
  const plan::Schedule& schedule = *step.schedule;
  StageModel& model = *options_.model;
  SHOAL_RETURN_IF_ERROR(
      model.BeginStep(step.microbatches, step.loss_scale, *step.source, *step.sink));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int64_t> message_bytes, MessageBytes(schedule.shape));
  SHOAL_RETURN_IF_ERROR(pools_.BeginStep(
      schedule, [&model](int chunk, int microbatch) { return model.BytesOf(chunk, microbatch); }));
  if (step.links != nullptr && device_links_ != nullptr) {
    device_links_->Attach(*step.links);
    step.links = device_links_.get();
  }
  if (step.links != nullptr) {
    SHOAL_RETURN_IF_ERROR(step.links->BeginStep({.step = step.step,
                                                 .attempt = step.attempt,
                                                 .queues = checked_->queues,
                                                 .bytes = message_bytes}));
  }
  const auto seconds = [&](TimeKind kind) { return options_.time_kinds->seconds(kind); };
  const double waited_for_weights = seconds(TimeKind::kGetWait);
  Stream& reloads = own_reloads_ != nullptr ? *own_reloads_ : *offloads_;
  StageWalk walk(options_, step, message_bytes, pools_, *offloads_, reloads,
                 [this] { return cancelled(); });
  absl::Status status = walk.Run();
  if (status.ok() && step.links != nullptr) {
    status = walk.AwaitSent();
  }
  if (status.ok()) {
    status = walk.AwaitDevice();
  }
  options_.time_kinds->AtMicrobatch(-1);
  if (!status.ok()) {
    // Work in flight ends before its memory is reused; its errors add nothing.
    if (device_links_ != nullptr && step.links != nullptr) {
      device_links_->Abandon(status);
    }
    offloads_->Synchronize().IgnoreError();
    reloads.Synchronize().IgnoreError();
    options_.compute->Synchronize().IgnoreError();
    pools_.GiveAll();
    return status;
  }
  StageReport report;
  walk.FillReport(report);
  report.stalls[static_cast<size_t>(Stall::kWeights)].seconds =
      seconds(TimeKind::kGetWait) - waited_for_weights;
  for (int microbatch = 0; microbatch < schedule.shape.microbatches; ++microbatch) {
    report.microbatches.push_back(model.result(microbatch));
  }
  report.peak_device_bytes = pools_.pool(plan::MemoryPool::kDevice).peak();
  report.peak_host_bytes = pools_.pool(plan::MemoryPool::kHost).peak();
  report.peak_message_bytes = pools_.pool(plan::MemoryPool::kMessages).peak();
  return report;
}

// Checks a schedule only if it differs from that of the previous step.
absl::Status StageRunner::Check(const StageStep& step) {
  const plan::Schedule& schedule = *step.schedule;
  if (!checked_.has_value() || !Same(checked_->schedule, schedule)) {
    checked_.reset();
    SHOAL_RETURN_IF_ERROR(CheckSchedule(schedule));
    checked_ = Checked{.schedule = schedule, .queues = Queues(schedule)};
  }
  if (options_.stage >= schedule.shape.stages) {
    return InvalidArgument("{}: of {} stages there is no stage {}", schedule.name,
                           schedule.shape.stages, options_.stage);
  }
  if (step.microbatches.size() != static_cast<size_t>(schedule.shape.microbatches)) {
    return InvalidArgument("{}: stage {} has {} microbatches for a schedule of {}", schedule.name,
                           options_.stage, step.microbatches.size(), schedule.shape.microbatches);
  }
  if (step.links == nullptr && schedule.shape.stages > 1) {
    return InvalidArgument("{}: stage {} has no links to its neighbours", schedule.name,
                           options_.stage);
  }
  return absl::OkStatus();
}

std::vector<plan::MessageQueue> StageRunner::Queues(const plan::Schedule& schedule) const {
  const bool on_device = options_.collectives != nullptr || options_.links_on_device;
  return MessageQueues(schedule, on_device ? plan::kDeviceMessages : plan::kUsualSendBuffers);
}

std::vector<plan::MessageQueue> StageRunner::LinkQueues(const plan::Schedule& schedule) const {
  std::vector<plan::MessageQueue> queues = Queues(schedule);
  return options_.collectives == nullptr ? queues : ControlQueues(queues);
}

absl::StatusOr<std::vector<int64_t>> StageRunner::MessageBytes(
    const plan::ScheduleShape& shape) const {
  std::vector<int64_t> bytes;
  for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
    bytes.push_back(options_.model->BytesOf(0, microbatch).message);
    for (int chunk = 1; chunk < shape.chunks; ++chunk) {
      if (options_.model->BytesOf(chunk, microbatch).message != bytes.back()) {
        return Internal("stage {}: chunk {} has messages of another size than chunk 0",
                        options_.stage, chunk);
      }
    }
  }
  return bytes;
}

void StageRunner::Cancel(const absl::Status& why) {
  SHOAL_CHECK(!why.ok());
  absl::MutexLock lock(&mutex_);
  if (!cancelled_.ok()) {
    return;
  }
  cancelled_ = why;
  if (links_ != nullptr) {
    links_->Close(why);
  }
}

absl::Status StageRunner::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

}  // namespace shoal::worker
