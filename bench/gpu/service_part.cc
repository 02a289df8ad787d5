// What fetching weights from servers and pushing gradients to them adds to a step: real processes
// on this host, beside the same microbatches with everything resident.
#include <unistd.h>

#include <filesystem>

#include "bench/gpu/batches.h"
#include "bench/gpu/parts.h"
#include "bench/gpu/resident_training.h"
#include "bench/gpu/timing.h"
#include "bench/on_demand/train_run.h"
#include "common/file.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMicrobatches = 8;  // of a step
constexpr int64_t kWarmUp = 2;
constexpr double kMostLonger = 0.05;
constexpr absl::Duration kLimit = absl::Minutes(3);  // of each command

// A model and, at the end, a checkpoint of it, which is not what is measured: in memory where there
// is room.
fs::path PlaceFor(const plan::ModelSpec& spec) {
  constexpr uintmax_t kBytesOfParameter = 2 + 16;
  const fs::path memory = "/dev/shm";
  std::error_code error;
  const fs::space_info space = fs::space(memory, error);
  const auto needed = static_cast<uintmax_t>(plan::ParameterCount(spec)) * kBytesOfParameter;
  return !error && space.available > 2 * needed ? memory : fs::temp_directory_path();
}

// Removed with all it holds.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& place)
      : path_((place / fmt::format("shoal-gpu-check-{}", getpid())).string()) {}
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

absl::Status WriteSamples(const std::string& path, const plan::ModelSpec& spec, const TrainCase& c,
                          int64_t samples, uint64_t seed) {
  std::string lines;
  for (int64_t i = 0; i < samples; ++i) {
    const worker::PackedBatch batch = OneSequence(spec, c.tokens, seed + static_cast<uint64_t>(i));
    lines += nlohmann::json{{"input_ids", batch.tokens}, {"labels", batch.tokens}}.dump() + "\n";
  }
  return WriteFileAtomically(path, lines);
}

plan::Job JobOf(const std::string& folder, const TrainCase& c, int64_t steps,
                plan::DeviceKind device) {
  plan::Job job;
  job.model = folder + "/model";
  job.data.train = folder + "/train.jsonl";
  job.data.max_sequence_tokens = c.tokens;
  job.data.microbatch_tokens = c.tokens;
  job.train.steps = steps;
  job.train.minibatch_samples = kMicrobatches;
  job.train.compute = plan::ComputeType::kBf16;
  job.train.device = device;
  job.cluster.servers = 1;
  job.cluster.workers = 1;
  return job;
}

}  // namespace

absl::Status RunServicePart(PartRun& run) {
  const std::string program = run.options().programs + "/shoal";
  if (run.options().programs.empty() || !fs::exists(program)) {
    return FailedPrecondition("{} is not there", program);
  }
  const TrainCase& c = run.sizes().service;
  const std::optional<plan::ModelSpec> spec = plan::NamedShape(c.shape);
  if (!spec) {
    return InvalidArgument("no shape is called {}", c.shape);
  }
  const int64_t steps = kWarmUp + run.sizes().service_steps;
  const WorkFolder folder(PlaceFor(*spec));
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder.path()));
  const TrainRunner runner(program, folder.path());
  SHOAL_RETURN_IF_ERROR(runner
                            .Run({"model", "init", "--shape", c.shape, "--dtype", "bf16",
                                  "--output", folder.path() + "/model"},
                                 kLimit)
                            .status());
  SHOAL_RETURN_IF_ERROR(WriteSamples(folder.path() + "/train.jsonl", *spec, c,
                                     steps * kMicrobatches, run.options().seed));
  // One after the other: the worker has the GPU to itself.
  double resident = 0;
  {
    SHOAL_ASSIGN_OR_RETURN(const ResidentTraining trained, TrainResident(run, *spec, c.tokens));
    resident = static_cast<double>(kMicrobatches) * trained.seconds;
  }
  SHOAL_ASSIGN_OR_RETURN(
      const std::vector<MeasuredStep> measured,
      runner.Train(JobOf(folder.path(), c, steps, run.options().device), kLimit));
  std::vector<double> seconds;
  for (auto step = measured.begin() + kWarmUp; step != measured.end(); ++step) {
    seconds.push_back(step->seconds);
  }
  const double with_servers = Median(std::move(seconds));
  const double longer = with_servers / resident - 1;
  run.report().AddTable(
      "A step through servers",
      fmt::format(
          "Shape {}, {} microbatches of {} tokens a step, one server and one worker as "
          "processes on this host, the server's memory and its AdamW on the host; beside {} "
          "times a microbatch with weights and gradients resident, without the optimizer. "
          "Medians.",
          c.shape, kMicrobatches, c.tokens, kMicrobatches),
      {"resident, ms", "with servers, ms", "longer by"});
  run.report().AddRow({fmt::format("{:.1f}", 1e3 * resident),
                       fmt::format("{:.1f}", 1e3 * with_servers),
                       fmt::format("{:+.1f}%", 100 * longer)});
  run.report().AddBar({"a step through servers beside a resident one",
                       fmt::format("at most {:.0f}% longer", 100 * kMostLonger),
                       fmt::format("{:+.1f}%", 100 * longer), longer <= kMostLonger});
  return absl::OkStatus();
}

}  // namespace shoal::bench
