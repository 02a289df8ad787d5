#include "cli/plan/pipeline_report.h"

#include <algorithm>
#include <utility>

#include "cli/run/machine.h"
#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/pipeline/least_recompute.h"
#include "core/plan/pipeline/schedule_drawing.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "core/plan/step/cost_model.h"
#include "nlohmann/json.hpp"
#include "worker/backend/open/open_device.h"
#include "worker/probe/probe.h"

namespace shoal::cli {
namespace {

// People read no more rows; --json has them all.
constexpr size_t kRowsShown = 16;

bool IsWhole(const plan::PipelinePace& pace) {
  return pace.forward_flops > 0 && pace.backward_input_flops > 0 &&
         pace.backward_weights_flops > 0 && pace.offload_bytes_per_second > 0 &&
         pace.reload_bytes_per_second > 0;
}

// Lists the rates of attention and head, if known.
std::string OtherRates(const plan::PipelinePace& pace) {
  std::string text;
  if (pace.attention_forward_flops > 0) {
    text += fmt::format(", attention {:.3g} and {:.3g}", pace.attention_forward_flops / 1e9,
                        pace.attention_backward_flops / 1e9);
  }
  if (pace.head_flops > 0) {
    text += fmt::format(", head {:.3g}", pace.head_flops / 1e9);
  }
  return text;
}

// Returns its share of this machine's cores; 0: all cores of its own machine.
int ThreadsOfAWorker(const plan::Job& job) {
  return job.cluster.local ? ThreadsPerProcess(UsableCores(ExamineMachine()),
                                               static_cast<int>(job.cluster.workers),
                                               job.train.threads_per_worker)
                           : static_cast<int>(job.train.threads_per_worker);
}

// Measures on this machine the kind of device that the job's workers compute on.
absl::StatusOr<plan::PipelinePace> MeasurePace(const plan::Job& job, const plan::ModelSpec& spec) {
  const plan::PipelineOptions& options = job.cluster.pipeline;
  const worker::ProbeOptions probe = {.compute = plan::ComputeDType(job),
                                      .tokens = job.data.microbatch_tokens,
                                      .sequence_tokens = job.data.max_sequence_tokens,
                                      .duplex = options.pace.duplex};
  if (job.train.device != plan::DeviceKind::kCuda) {
    return worker::ProbePace(spec, {.probe = probe,
                                    .threads = ThreadsOfAWorker(job),
                                    .copy_bytes_per_second = options.copy_rate});
  }
  const std::vector<int> gpus = worker::UsableGpus();
  absl::StatusOr<worker::OpenedDevice> opened =
      worker::OpenDevice({.kind = plan::DeviceKind::kCuda, .gpu = gpus.empty() ? 0 : gpus.front()});
  if (!opened.ok()) {
    return Annotate(opened.status(),
                    "cluster.pipeline.pace is not given, and to measure it takes a GPU here");
  }
  SHOAL_ASSIGN_OR_RETURN(const worker::ProbeResult measured,
                         worker::Probe(spec, probe, std::move(opened->compute_device)));
  return measured.pace;
}

// Returns a stage's share of this machine's GPU; 0 without a GPU or if stages compute on the CPU.
absl::StatusOr<int64_t> GpuBytesOfAWorker(const plan::Job& job, const plan::ModelSpec& spec) {
  if (job.train.device != plan::DeviceKind::kCuda) {
    return 0;
  }
  const std::vector<int> gpus = worker::UsableGpus();
  if (gpus.empty()) {
    return 0;
  }
  const plan::GpuTurn first = {.place = 0, .gpus = gpus.size()};
  const int64_t sharing = job.cluster.local ? first.Share(job.cluster.workers) : 1;
  SHOAL_ASSIGN_OR_RETURN(const worker::OpenedDevice opened,
                         worker::OpenDevice({.kind = plan::DeviceKind::kCuda,
                                             .gpu = gpus.front(),
                                             .sharing = static_cast<int>(sharing)}));
  const int64_t budget = opened.compute_device.device->budget_bytes();
  if (!job.cluster.local) {
    return budget;
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::MemoryPlan memory,
                         plan::PlanMemory(spec, job, static_cast<int>(job.cluster.servers),
                                          static_cast<int>(job.cluster.workers), {}));
  const int64_t servers = plan::ServersBytesOn(first, memory.servers);
  if (servers / sharing >= budget) {
    return ResourceExhausted(
        "the job's servers take {} of a GPU that has {} for each of {} workers on it; say "
        "service.memory: host, or use more GPUs",
        FormatBytes(servers), FormatBytes(budget), sharing);
  }
  return budget - servers / sharing;
}

// Measures what the job leaves open of its pace and writes it there. Returns whether it measured.
absl::StatusOr<bool> SettlePace(plan::Job& job, const plan::ModelSpec& spec) {
  plan::PipelineOptions& options = job.cluster.pipeline;
  if (IsWhole(options.pace)) {
    return false;
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::PipelinePace measured, MeasurePace(job, spec));
  for (double plan::PipelinePace::*rate :
       {&plan::PipelinePace::forward_flops, &plan::PipelinePace::backward_input_flops,
        &plan::PipelinePace::backward_weights_flops, &plan::PipelinePace::attention_forward_flops,
        &plan::PipelinePace::attention_backward_flops, &plan::PipelinePace::head_flops,
        &plan::PipelinePace::elementwise_bytes_per_second,
        &plan::PipelinePace::offload_bytes_per_second,
        &plan::PipelinePace::reload_bytes_per_second}) {
    if (options.pace.*rate == 0) {
      options.pace.*rate = measured.*rate;
    }
  }
  return true;
}

absl::Status PlanWithin(PipelineReport& planned, const plan::Job& job, const plan::ModelSpec& spec,
                        const std::vector<plan::MicrobatchSize>& microbatches) {
  SHOAL_ASSIGN_OR_RETURN(planned.request, plan::PipelineRequestOf(spec, job, microbatches));
  SHOAL_ASSIGN_OR_RETURN(planned.plan, plan::PlanPipeline(planned.request));
  SHOAL_ASSIGN_OR_RETURN(planned.stages, plan::StageNeedsOf(spec, job, planned.plan.chosen().choice,
                                                            planned.request.microbatches));
  return absl::OkStatus();
}

int64_t Largest(const std::vector<int64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

std::string Chunks(double chunks) { return fmt::format("{:.4g}", chunks); }

std::string BytesByStage(const std::vector<int64_t>& bytes) {
  std::string text;
  for (const int64_t stage : bytes) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", FormatBytes(stage));
  }
  return text.empty() ? "-" : text;
}

nlohmann::json CandidateJson(const plan::PipelineCandidate& candidate, bool chosen) {
  return {{"event", "pipeline_candidate"},
          {"chosen", chosen},
          {"schedule", plan::ToString(candidate.choice.schedule)},
          {"stages", candidate.choice.stages},
          {"chunks", candidate.choice.chunks},
          {"offloaded_chunks", candidate.choice.offloaded_chunks},
          {"recompute", plan::Name(candidate.choice.recompute)},
          {"step_seconds", candidate.step_seconds},
          {"bubble_share", candidate.bubble_share},
          {"k", candidate.copy_ratio},
          {"device_bytes", candidate.device_bytes},
          {"host_bytes", candidate.host_bytes},
          {"fits", candidate.fits},
          {"simulated", candidate.simulated},
          {"verdict", candidate.verdict}};
}

}  // namespace

absl::StatusOr<std::vector<plan::StepPlan>> PlanFirstSteps(const plan::Job& job,
                                                           const plan::ModelSpec& spec,
                                                           const sim::Minibatches& minibatches,
                                                           int64_t steps) {
  const int64_t groups = std::max<int64_t>(1, job.cluster.workers / job.cluster.pipeline.stages);
  const plan::StepPlanOptions options = plan::StepPlanOptionsOf(job, groups);
  const plan::CostModel cost =
      job.plan.cost == plan::CostSource::kTokens ? plan::TokenCost() : plan::FlopCost(job, spec);
  std::vector<plan::StepPlan> plans;
  for (int64_t step = 1; step <= std::min(steps, job.train.steps); ++step) {
    SHOAL_ASSIGN_OR_RETURN(const auto samples, minibatches(step));
    SHOAL_ASSIGN_OR_RETURN(plan::StepPlan step_plan, plan::PlanStep(samples, options, cost));
    plans.push_back(std::move(step_plan));
  }
  return plans;
}

absl::StatusOr<std::string> SettleRecompute(plan::Job& job, const plan::ModelSpec& spec,
                                            int64_t available_bytes) {
  if (!job.cluster.local || job.cluster.pipeline.enabled()) {
    return "";
  }
  SHOAL_ASSIGN_OR_RETURN(const int64_t gpu_bytes, GpuBytesOfAWorker(job, spec));
  return plan::SettleRecompute(spec, job,
                               {.machine_bytes = available_bytes, .gpu_bytes = gpu_bytes});
}

std::string PipelineKey(const plan::Job& job) {
  return std::string(plan::ScheduleKey(job.cluster.pipeline));
}

absl::StatusOr<PipelineReport> ReportPipeline(plan::Job& job, const plan::ModelSpec& spec,
                                              const sim::Minibatches& minibatches) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<plan::StepPlan> steps,
                         PlanFirstSteps(job, spec, minibatches, plan::kTypicalSteps));
  const std::vector<plan::MicrobatchSize> heaviest =
      plan::HeaviestStep(steps, job.data.microbatch_tokens);
  PipelineReport planned;
  SHOAL_ASSIGN_OR_RETURN(planned.measured, SettlePace(job, spec));
  SHOAL_RETURN_IF_ERROR(PlanWithin(planned, job, spec, heaviest));
  int64_t& device_memory = job.cluster.pipeline.device_memory;
  if (device_memory > 0) {
    return planned;
  }
  SHOAL_ASSIGN_OR_RETURN(const int64_t gpu_bytes, GpuBytesOfAWorker(job, spec));
  if (gpu_bytes > 0) {
    SHOAL_ASSIGN_OR_RETURN(device_memory,
                           plan::DeviceMemoryOn(spec, job, gpu_bytes, planned.stages));
    SHOAL_RETURN_IF_ERROR(PlanWithin(planned, job, spec, heaviest));
  }
  return planned;
}

std::string Describe(const PipelineReport& planned) {
  const plan::PipelineCandidate& chosen = planned.plan.chosen();
  if (chosen.choice.stages == 1) {
    return fmt::format("activations: {} recompute, {} of {} chunks offloaded; {}",
                       plan::Name(chosen.choice.recompute), Chunks(chosen.choice.offloaded_chunks),
                       chosen.choice.chunks, chosen.verdict);
  }
  return fmt::format(
      "pipeline: {}, {} stages of {} chunks, {} offloaded, {} recompute; bubble {:.1f}%, {}",
      plan::ToString(chosen.choice.schedule), chosen.choice.stages, chosen.choice.chunks,
      Chunks(chosen.choice.offloaded_chunks), plan::Name(chosen.choice.recompute),
      100 * chosen.bubble_share, chosen.verdict);
}

std::string WarningOf(const PipelineReport& planned) {
  const plan::PipelineCandidate& chosen = planned.plan.chosen();
  const double offload = planned.request.offload.value;
  if (offload == plan::OffloadedChunks::kAuto || offload == 0 || Largest(chosen.host_bytes) > 0) {
    return "";
  }
  return fmt::format(
      "{}.offload moves nothing here: of {} {} with {} chunks each, all activations are needed "
      "again too soon to leave; three chunks or more have some that are not",
      chosen.choice.stages == 1 ? "train" : "cluster.pipeline", chosen.choice.stages,
      chosen.choice.stages == 1 ? "stage" : "stages", chosen.choice.chunks);
}

void PrintPipeline(const PipelineReport& planned, Streams& streams) {
  const plan::PipelineRequest& request = planned.request;
  const plan::PipelinePace& pace = request.pace;
  const plan::PipelineCandidate& chosen = planned.plan.chosen();
  streams.out << fmt::format(
      "pipeline of {} {}, {} microbatches in the heaviest step planned\n"
      "pace, {}: forward {:.3g}, backward {:.3g} and {:.3g} GFLOP/s{}; copies {}/s out, {}/s "
      "back{}; k {:.2f}\n\n",
      request.stages, request.stages == 1 ? "stage" : "stages", request.microbatches.size(),
      planned.measured ? "measured here" : "given", pace.forward_flops / 1e9,
      pace.backward_input_flops / 1e9, pace.backward_weights_flops / 1e9, OtherRates(pace),
      FormatBytes(static_cast<int64_t>(pace.offload_bytes_per_second)),
      FormatBytes(static_cast<int64_t>(pace.reload_bytes_per_second)),
      pace.duplex ? " at once" : "", chosen.copy_ratio);
  if (!request.budgets.empty() && request.budgets.front().device > 0) {
    streams.out << fmt::format("activations of a stage may take {} of its device\n\n",
                               FormatBytes(request.budgets.front().device));
  }
  Table table({{"schedule"},
               {"chunks", Table::Align::kRight},
               {"offloaded", Table::Align::kRight},
               {"recompute"},
               {"step s", Table::Align::kRight},
               {"bubble", Table::Align::kRight},
               {"device", Table::Align::kRight},
               {"host", Table::Align::kRight},
               {"k", Table::Align::kRight},
               {"verdict"}});
  const auto& candidates = planned.plan.candidates;
  for (size_t i = 0; i < std::min(candidates.size(), kRowsShown); ++i) {
    const plan::PipelineCandidate& candidate = candidates[i];
    table.Add({plan::ToString(candidate.choice.schedule), std::to_string(candidate.choice.chunks),
               Chunks(candidate.choice.offloaded_chunks),
               std::string(plan::Name(candidate.choice.recompute)),
               fmt::format("{:.4g}", candidate.step_seconds),
               fmt::format("{:.1f}%", 100 * candidate.bubble_share),
               FormatBytes(Largest(candidate.device_bytes)),
               FormatBytes(Largest(candidate.host_bytes)),
               fmt::format("{:.2f}", candidate.copy_ratio), candidate.verdict});
  }
  streams.out << table.Render(streams.out_terminal);
  if (candidates.size() > kRowsShown) {
    streams.out << fmt::format("and {} more that lost: --json shows them\n",
                               candidates.size() - kRowsShown);
  }
  streams.out << fmt::format("peak by stage, on device: {}; on host: {}\n\n",
                             BytesByStage(chosen.device_bytes), BytesByStage(chosen.host_bytes));
}

void PrintJsonPipeline(const PipelineReport& planned, Streams& streams) {
  const plan::PipelinePace& pace = planned.request.pace;
  PrintJson(streams.out, {{"event", "pipeline"},
                          {"stages", planned.request.stages},
                          {"microbatches", planned.request.microbatches.size()},
                          {"measured", planned.measured},
                          {"forward_flops", pace.forward_flops},
                          {"backward_input_flops", pace.backward_input_flops},
                          {"backward_weights_flops", pace.backward_weights_flops},
                          {"attention_forward_flops", pace.attention_forward_flops},
                          {"attention_backward_flops", pace.attention_backward_flops},
                          {"head_flops", pace.head_flops},
                          {"offload_bytes_per_second", pace.offload_bytes_per_second},
                          {"reload_bytes_per_second", pace.reload_bytes_per_second}});
  for (const plan::PipelineCandidate& candidate : planned.plan.candidates) {
    PrintJson(streams.out, CandidateJson(candidate, &candidate == &planned.plan.chosen()));
  }
}

absl::Status DrawPipeline(const PipelineReport& planned, const std::string& file) {
  const plan::PipelineRequest& request = planned.request;
  const plan::PipelineChoice& choice = planned.plan.chosen().choice;
  SHOAL_ASSIGN_OR_RETURN(const plan::Schedule schedule,
                         plan::BuildChosenSchedule(request.spec, request.compute, choice,
                                                   request.microbatches, request.pace));
  const plan::ScheduleCosts costs = plan::PipelineCosts(
      {.spec = request.spec, .compute = request.compute, .recompute = choice.recompute},
      schedule.shape, choice.split, request.microbatches, request.pace);
  SHOAL_ASSIGN_OR_RETURN(const plan::ScheduleTimes times,
                         plan::SimulateSchedule(schedule, costs, plan::StreamsOf(request.pace)));
  return WriteFileAtomically(
      file, plan::DrawSchedule(
                schedule, times,
                {.subtitle = planned.measured ? "simulated by what was measured here" : "simulated",
                 .time_unit = "s"}));
}

}  // namespace shoal::cli
