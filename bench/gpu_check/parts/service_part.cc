// Measures what fetching weights from servers and pushing gradients adds to a step: real processes
// on this host against the same microbatches and optimizer with everything resident.
#include <algorithm>

#include "absl/time/clock.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/timing.h"
#include "bench/gpu_check/parts/resident_training.h"
#include "bench/gpu_check/parts/served_run.h"
#include "bench/gpu_check/report/bars.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

constexpr int64_t kMicrobatches = 8;  // per step
constexpr int64_t kWarmUp = 2;
constexpr int64_t kModelBytes = 2;                   // per parameter, on disk
constexpr absl::Duration kLimit = absl::Minutes(5);  // of each process

double MedianOfSteps(const std::vector<MeasuredStep>& steps, double MeasuredStep::*of) {
  std::vector<double> values;
  for (auto step = steps.begin() + kWarmUp; step != steps.end(); ++step) {
    values.push_back((*step).*of);
  }
  return Median(std::move(values));
}

// The worker's share in its last step; 0 if `shoal status` did not say.
double ShareOf(const nlohmann::json& status, const char* what) {
  for (const nlohmann::json& member : status.value("members", nlohmann::json::array())) {
    if (member.contains("last_step")) {
      return member["last_step"].value(what, 0.0);
    }
  }
  return 0;
}

class ServiceTable {
 public:
  explicit ServiceTable(PartRun& run) : run_(run) {}

  absl::Status AddResident(const TrainCase& c) {
    SHOAL_ASSIGN_OR_RETURN(const ResidentTraining trained,
                           TrainResident(run_, c, /*profile=*/false));
    const double passes = static_cast<double>(kMicrobatches) * trained.microbatch_seconds;
    resident_ = passes + trained.optimizer_seconds;
    run_.report().AddRow(
        {"resident", fmt::format("{:.1f}", 1e3 * resident_), "-", "-", "-", "-",
         fmt::format("{} x {:.2f} ms and AdamW's {:.2f} ms{}", kMicrobatches,
                     1e3 * trained.microbatch_seconds, 1e3 * trained.optimizer_seconds,
                     trained.attention_backward.empty()
                         ? ""
                         : "; attention backward by " + trained.attention_backward)});
    return absl::OkStatus();
  }

  // Returns how much longer it takes than a resident step.
  double AddServed(const std::string& name, const ObservedRun& ran, const std::string& landing) {
    const double seconds = MedianOfSteps(ran.steps, &MeasuredStep::seconds);
    const double longer = seconds / resident_ - 1;
    const auto share = [](double value) { return fmt::format("{:.1f}%", 100 * value); };
    run_.report().AddRow(
        {name, fmt::format("{:.1f}", 1e3 * seconds), fmt::format("{:+.1f}%", 100 * longer),
         share(MedianOfSteps(ran.steps, &MeasuredStep::idle_share)),
         share(ShareOf(ran.status, "get_wait")), share(ShareOf(ran.status, "push_wait")), landing});
    return longer;
  }

 private:
  PartRun& run_;
  double resident_ = 0;
};

// Adds a row and a bar for the job as it is.
absl::Status AddServed(PartRun& run, ServiceTable& table, const TrainRunner& runner,
                       const plan::Job& job, int64_t steps, const WantedBar& bar) {
  const bool on_gpu = job.service.memory == plan::PartitionMemory::kCuda;
  const absl::StatusOr<absl::Duration> left = TimeLeft(run, kLimit);
  absl::StatusOr<ObservedRun> ran =
      left.ok() ? runner.Observe(job, steps, *left) : absl::StatusOr<ObservedRun>(left.status());
  if (left.ok()) {
    KeepLogs(run.options(), runner, on_gpu ? "service-gpu" : "service");
  }
  if (!ran.ok()) {
    run.report().AddBar(bar.NotMeasured(std::string(Message(ran.status()))));
    return ran.status();
  }
  const std::string path = LineOfLog(runner, "worker-0", "weights get into");
  const std::string between = LineOfLog(runner, "worker-0", "from GPU to GPU");
  const double longer =
      table.AddServed(on_gpu ? "servers' memory on the GPU" : "servers' memory on the host", *ran,
                      between.empty() ? path : between);
  run.report().AddBar(
      bar.Found(fmt::format("{:+.1f}%", 100 * longer), longer <= kMostLongerByServers));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunServicePart(PartRun& run) {
  SHOAL_ASSIGN_OR_RETURN(const std::string program, ShoalProgram(run.options()));
  const TrainCase& c = run.sizes().service;
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, c.Spec());
  run.report().AddTable(
      "A step through servers",
      fmt::format("{}, {} microbatches a step; one server and one worker as processes on this "
                  "host, beside as many microbatches and one step of AdamW with everything "
                  "resident. Medians of {} steps after {}; idle is what the worker did not compute "
                  "of a step, waits are shares of the last step.",
                  c.Name(), kMicrobatches, run.sizes().service_steps, kWarmUp),
      {"what", "step, ms", "longer by", "idle", "waited for weights", "for pushes", ""});
  ServiceTable table(run);
  // Sequentially: the worker needs the GPU exclusively.
  SHOAL_RETURN_IF_ERROR(table.AddResident(c));

  const WorkFolder folder(plan::ParameterCount(spec) * kModelBytes);
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder.path()));
  const TrainRunner runner(program, folder.path());
  const std::string model = folder.path() + "/model", samples = folder.path() + "/train.jsonl";
  SHOAL_ASSIGN_OR_RETURN(absl::Duration left, TimeLeft(run, kLimit));
  SHOAL_RETURN_IF_ERROR(
      runner.Run({"model", "init", "--shape", c.shape, "--dtype", "bf16", "--output", model}, left)
          .status());
  SHOAL_RETURN_IF_ERROR(WriteSamples(samples, spec, std::vector<int64_t>(kMicrobatches, c.tokens),
                                     run.options().seed));
  const int64_t steps = kWarmUp + run.sizes().service_steps;
  plan::Job job = JobOfOneWorker(model, samples, c.tokens, run.options().device);
  job.train.minibatch_samples = kMicrobatches;
  job.train.compute = plan::ComputeType::kBf16;
  absl::Status status = AddServed(run, table, runner, job, steps, ServiceBar());
  if (run.options().device == plan::DeviceKind::kCuda) {
    job.service.memory = plan::PartitionMemory::kCuda;
    status.Update(AddServed(run, table, runner, job, steps, ServiceOnGpuBar()));
  }
  return status;
}

}  // namespace shoal::bench
