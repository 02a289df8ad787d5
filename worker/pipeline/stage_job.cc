#include "worker/pipeline/stage_job.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/pipeline/fitting_schedule.h"
#include "core/plan/pipeline/job_pipeline.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/stage_units.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/peers/rendezvous.h"
#include "worker/pipeline/links/link_control.h"

namespace shoal::worker {
namespace {

constexpr absl::Duration kLeastNeighbourTimeout = absl::Minutes(10);
constexpr double kStepsOfPatience = 4;

// The answer to all stages if they exchange by collectives.
constexpr std::string_view kSettled = "all can";

StepAttempt AttemptOf(const proto::StepWork& work) {
  return {.step = work.step(), .attempt = work.attempt(), .round = work.round()};
}

}  // namespace

absl::Duration NeighbourTimeout(const plan::ModelSpec& spec, DType compute,
                                const plan::ChosenPipeline& pipeline,
                                const plan::PipelinePace& pace) {
  const std::vector<double> costs =
      plan::UnitCosts({.spec = spec, .compute = compute, .recompute = pipeline.choice.recompute},
                      pipeline.heaviest, pace);
  const double step = std::accumulate(costs.begin(), costs.end(), 0.0);
  return std::max(kLeastNeighbourTimeout, absl::Seconds(kStepsOfPatience * step));
}

StageJob::StageJob(const plan::ModelSpec& spec, const plan::Job& job, Options options)
    : spec_(spec),
      compute_type_(plan::ComputeDType(job)),
      pace_(job.cluster.pipeline.pace),
      budget_(plan::BudgetOf(job.cluster.pipeline)),
      options_(std::move(options)),
      chunks_(options_.pipeline.ChunksOf(options_.group.stage)) {}

absl::StatusOr<std::unique_ptr<StageJob>> StageJob::Create(const plan::ModelSpec& spec,
                                                           const plan::Job& job,
                                                           ComputeDevice compute_device,
                                                           Options options) {
  std::unique_ptr<StageJob> stage(new StageJob(spec, job, std::move(options)));
  const Options& own = stage->options_;
  const plan::PipelineChoice& choice = own.pipeline.choice;
  SHOAL_ASSIGN_OR_RETURN(
      auto transformer, Transformer::Create(spec, stage->compute_type_, std::move(compute_device)));
  transformer->rotary().ChooseFor(job.data.max_sequence_tokens);
  stage->device_ = &transformer->device();
  stage->compute_ = &transformer->ops().stream();
  stage->model_ =
      std::make_unique<TransformerStage>(std::move(transformer), stage->chunks_, choice.recompute);
  const plan::PipelineOptions& pipeline = job.cluster.pipeline;
  if (!stage->device_->asynchronous()) {
    stage->bus_ =
        MakeCpuDevice(pipeline.device_memory, {.bytes_per_second = pipeline.copy_rate}, *own.clock);
    stage->bus_compute_ = stage->bus_->NewStream(StreamKind::kCompute);
  }
  Device* const activations = stage->bus_ != nullptr ? stage->bus_.get() : stage->device_;
  stage->host_ = activations->NewHostMemory(pipeline.host_memory);
  const absl::Duration timeout =
      NeighbourTimeout(spec, stage->compute_type_, own.pipeline, stage->pace_);
  if (own.group.stages() > 1 && own.may_exchange) {
    SHOAL_RETURN_IF_ERROR(stage->JoinRendezvous(timeout));
  }
  stage->MakeLinks(job, timeout);
  stage->runner_ = std::make_unique<StageRunner>(StageRunnerOptions{
      .stage = own.group.stage,
      .model = stage->model_.get(),
      .device = activations,
      .compute = stage->bus_ != nullptr ? stage->bus_compute_.get() : stage->compute_,
      .host = stage->host_.get(),
      .time_kinds = own.time_kinds,
      .clock = own.clock,
      .duplex = stage->pace_.duplex,
      .wait_timeout = timeout,
      .collectives = stage->collectives_.get(),
      .links_on_device = stage->links_on_device_,
      .check = own.check});
  std::string units;
  for (const plan::UnitRange& chunk : stage->chunks_) {
    units += fmt::format("{}{}-{}", units.empty() ? "" : ", ", chunk.first, chunk.end() - 1);
  }
  LogInfo("stage {} of {} in group {}: units {}; {}, {:.3g} chunks offloaded, {} recompute",
          own.group.stage, own.group.stages(), own.group.group, units,
          plan::ToString(choice.schedule), choice.offloaded_chunks, plan::Name(choice.recompute));
  return stage;
}

absl::Status StageJob::JoinRendezvous(absl::Duration timeout) {
  auto collectives =
      OpenCollectives(device_->asynchronous() ? device_ : nullptr, options_.open_collectives);
  PeerService& service = options_.service->peers();
  if (options_.group.stage == 0) {
    // Settles only whether: neighbours make their own communicators.
    service.Open(options_.group.peers(), [] { return std::string(kSettled); });
  }
  Rendezvous rendezvous({.peers = options_.group.peers(),
                         .client = options_.client.get(),
                         .service = &service,
                         .collectives = collectives.ok() ? collectives->get() : nullptr,
                         .unavailable = std::string(Message(collectives.status())),
                         .on_gpu = device_->asynchronous(),
                         .cancellation = options_.cancellation,
                         .timeout = timeout});
  SHOAL_ASSIGN_OR_RETURN(const proto::JoinRendezvousReply reply,
                         rendezvous.Join({}, /*generation=*/0, [] { return absl::OkStatus(); }));
  if (reply.id() == kSettled) {
    collectives_ = *std::move(collectives);
  } else {
    why_not_ = reply.reason().empty() ? "no reason was given" : reply.reason();
    links_on_device_ = reply.on_gpus() && device_->asynchronous();
  }
  return absl::OkStatus();
}

void StageJob::MakeLinks(const plan::Job& job, absl::Duration timeout) {
  const Options& own = options_;
  int64_t longest_message = plan::MessageBytes(spec_, compute_type_, job.data.microbatch_tokens);
  if (own.group.stages() > 1) {
    if (collectives_ != nullptr) {
      longest_message = kLongestControlBytes;
    } else if (device_->asynchronous()) {
      messages_ = device_->NewHostMemory(0);
    }
    own.service->Open(own.group);
    connections_ = std::make_unique<StageConnections>(
        StageConnections::Options{.group = own.group,
                                  .transports = own.transports,
                                  .preferred = job.service.transports.front(),
                                  .unavailable = own.unavailable,
                                  .device = links_on_device_ ? device_ : nullptr,
                                  .host = messages_.get()},
        own.client.get(), own.service);
  }
  links_ =
      std::make_unique<GroupLinks>(own.group.stage, longest_message, timeout, connections_.get());
}

std::map<int, proto::DataConnection> StageJob::connections() const {
  std::map<int, proto::DataConnection> connections;
  if (connections_ != nullptr) {
    connections = connections_->connections();
  }
  if (collectives_ != nullptr) {  // the transport carries only control messages
    for (auto& [stage, connection] : connections) {
      connection.set_transport(std::string(library()));
      connection.clear_reason();
    }
  }
  return connections;
}

absl::Status StageJob::PlanStep(std::span<const plan::MicrobatchSize> microbatches,
                                bool evaluates) {
  if (!planned_.empty() && std::ranges::equal(planned_, microbatches) &&
      schedule_.evaluates == evaluates) {
    return absl::OkStatus();
  }
  planned_.clear();
  const plan::PipelineChoice& choice = options_.pipeline.choice;
  if (evaluates) {
    schedule_ = plan::ForwardAlone(choice.ShapeOf(microbatches.size()));
  } else {
    SHOAL_ASSIGN_OR_RETURN(schedule_, plan::BuildFittingSchedule(spec_, compute_type_, choice,
                                                                 microbatches, pace_, budget_));
  }
  planned_.assign(microbatches.begin(), microbatches.end());
  return absl::OkStatus();
}

std::vector<int> StageJob::Uses() const {
  return plan::StageUseOrder(spec_, schedule_.stages[static_cast<size_t>(options_.group.stage)],
                             chunks_, schedule_.evaluates);
}

void StageJob::SkipStep(const proto::StepWork& work) { links_->Skip(AttemptOf(work)); }

absl::StatusOr<StageReport> StageJob::RunStep(const proto::StepWork& work,
                                              std::span<const PackedBatch> microbatches,
                                              double loss_scale, UnitSource& source,
                                              GradientSink& sink) {
  lost_neighbour_ = false;
  if (connections_ != nullptr) {
    const TimeKindClock::Scope waiting(*options_.time_kinds, TimeKind::kNeighbourWait);
    SHOAL_RETURN_IF_ERROR(links_->Prepare(AttemptOf(work), runner_->LinkQueues(schedule_)));
  }
  std::vector<int64_t> packs;
  for (const proto::MicrobatchWork& microbatch : work.microbatches()) {
    packs.push_back(microbatch.number());
  }
  auto report = runner_->RunStep({.step = work.step(),
                                  .attempt = work.attempt(),
                                  .schedule = &schedule_,
                                  .microbatches = microbatches,
                                  .packs = std::move(packs),
                                  .loss_scale = loss_scale,
                                  .source = &source,
                                  .sink = &sink,
                                  .links = links_.get(),
                                  .record_spans = work.trace()});
  lost_neighbour_ = runner_->lost_neighbour();
  return report;
}

void StageJob::Cancel(const absl::Status& why) {
  if (connections_ != nullptr) {
    connections_->Cancel(why);
  }
  runner_->Cancel(why);
}

}  // namespace shoal::worker
