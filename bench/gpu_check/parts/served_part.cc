// Trains a small model through servers on the device, and compares its losses with the same job's
// on the CPU.
#include <algorithm>
#include <cmath>

#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/parts/served_run.h"
#include "bench/gpu_check/report/bars.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

constexpr int64_t kSteps = 6;
constexpr int64_t kMicrobatchTokens = 256;
constexpr double kLearningRate = 1e-3;
constexpr absl::Duration kRunLimit = absl::Seconds(60);  // of each run, at most

// Largest relative error of any step's loss.
double BoundOf(plan::ComputeType compute) {
  return compute == plan::ComputeType::kFp32 ? 3e-4 : 2e-2;
}

std::string LossesOf(const std::vector<MeasuredStep>& steps) {
  std::vector<std::string> losses;
  for (const MeasuredStep& step : steps) {
    losses.push_back(fmt::format("{:.5f}", step.loss));
  }
  return fmt::format("{}", fmt::join(losses, " "));
}

}  // namespace

absl::Status RunServedPart(PartRun& run) {
  SHOAL_ASSIGN_OR_RETURN(const std::string program, ShoalProgram(run.options()));
  if (run.options().data.empty()) {
    return FailedPrecondition("--data does not name the folder of test data");
  }
  const std::string model = run.options().data + "/stories260k";
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<formats::HfModel> hf, formats::HfModel::Open(model));
  const WorkFolder folder(0);
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder.path()));
  const TrainRunner runner(program, folder.path());
  const std::string samples = folder.path() + "/train.jsonl";
  SHOAL_RETURN_IF_ERROR(
      WriteSamples(samples, hf->spec(), {200, 37, 130, 256, 64, 5, 99, 180}, run.options().seed));
  run.report().AddTable(
      "Training through servers",
      fmt::format("stories260k on random tokens, {} steps of AdamW, one server and one worker as "
                  "processes; relative to the losses of the same job on the CPU in fp32.",
                  kSteps),
      {"device", "type", "losses", "worst error", "bound", ""});
  const auto train = [&](plan::DeviceKind device, plan::ComputeType compute) {
    plan::Job job = JobOfOneWorker(model, samples, kMicrobatchTokens, device);
    job.train.minibatch_samples = 8;
    job.train.compute = compute;
    job.train.learning_rate = kLearningRate;
    const absl::StatusOr<absl::Duration> left = TimeLeft(run, kRunLimit);
    if (!left.ok()) {
      return absl::StatusOr<ObservedRun>(left.status());
    }
    auto ran = runner.Observe(job, kSteps, *left);
    KeepLogs(run.options(), runner,
             fmt::format("served-{}-{}", device == plan::DeviceKind::kCpu ? "cpu" : "gpu",
                         compute == plan::ComputeType::kFp32 ? "fp32" : "bf16"));
    return ran;
  };
  SHOAL_ASSIGN_OR_RETURN(const ObservedRun expected,
                         train(plan::DeviceKind::kCpu, plan::ComputeType::kFp32));
  run.report().AddRow({"CPU", "fp32", LossesOf(expected.steps), "-", "-", ""});
  std::vector<std::string> wrong;
  for (const plan::ComputeType compute : {plan::ComputeType::kFp32, plan::ComputeType::kBf16}) {
    SHOAL_ASSIGN_OR_RETURN(const ObservedRun ran, train(run.options().device, compute));
    double error = 0;
    for (size_t i = 0; i < expected.steps.size(); ++i) {
      const double off = std::abs(ran.steps[i].loss / expected.steps[i].loss - 1);
      error = std::isnan(off) ? off : std::max(error, off);
    }
    const char* const type = compute == plan::ComputeType::kFp32 ? "fp32" : "bf16";
    const bool right = error <= BoundOf(compute);  // NaN fails
    run.report().AddRow({"device", type, LossesOf(ran.steps), fmt::format("{:.1e}", error),
                         fmt::format("{:.0e}", BoundOf(compute)), right ? "right" : "**wrong**"});
    if (!right) {
      wrong.push_back(fmt::format("{}: off by {:.1e}", type, error));
    }
  }
  run.report().AddBar(ServedLossBar().Found(
      wrong.empty() ? "all" : fmt::format("{}", fmt::join(wrong, ", ")), wrong.empty()));
  return wrong.empty() ? absl::OkStatus()
                       : Internal("losses differ from the CPU's: {}", fmt::join(wrong, ", "));
}

}  // namespace shoal::bench
