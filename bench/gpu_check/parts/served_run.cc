#include "bench/gpu_check/parts/served_run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "bench/gpu_check/base/batches.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "shoal-gpu-check-";
constexpr const char* kMemory = "/dev/shm";

// Removes folders of checks whose process is gone.
void RemoveLeftOvers(const fs::path& place) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(place, error)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (name.starts_with(kPrefix) &&
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), pid).ec ==
            std::errc() &&
        kill(pid, 0) != 0 && errno == ESRCH) {
      std::error_code ignored;
      fs::remove_all(entry.path(), ignored);
    }
  }
}

fs::path PlaceFor(int64_t bytes) {
  RemoveLeftOvers(kMemory);
  std::error_code error;
  const fs::space_info space = fs::space(kMemory, error);
  return !error && space.available > 2 * static_cast<uintmax_t>(bytes) ? fs::path(kMemory)
                                                                       : fs::temp_directory_path();
}

}  // namespace

WorkFolder::WorkFolder(int64_t bytes)
    : path_((PlaceFor(bytes) / fmt::format("{}{}", kPrefix, getpid())).string()) {}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

absl::StatusOr<absl::Duration> TimeLeft(const PartRun& run, absl::Duration most) {
  const absl::Duration left = std::min(run.options().budget - absl::Seconds(run.seconds()), most);
  if (left < absl::Seconds(1)) {
    return DeadlineExceeded("no time was left");
  }
  return left;
}

absl::StatusOr<std::string> ShoalProgram(const PartOptions& options) {
  std::string program = options.programs + "/shoal";
  if (options.programs.empty() || !fs::exists(program)) {
    return FailedPrecondition("{} is not there", program);
  }
  return program;
}

absl::Status WriteSamples(const std::string& path, const plan::ModelSpec& spec,
                          const std::vector<int64_t>& lengths, uint64_t seed) {
  std::string lines;
  for (const int64_t length : lengths) {
    const worker::PackedBatch batch = OneSequence(spec, length, seed++);
    lines += nlohmann::json{{"input_ids", batch.tokens}, {"labels", batch.tokens}}.dump() + "\n";
  }
  return WriteFileAtomically(path, lines);
}

plan::Job JobOfOneWorker(const std::string& model, const std::string& samples,
                         int64_t microbatch_tokens, plan::DeviceKind device) {
  constexpr int64_t kWithoutEnd = 10000;
  plan::Job job;
  job.model = model;
  job.data.train = samples;
  job.data.max_sequence_tokens = microbatch_tokens;
  job.data.microbatch_tokens = microbatch_tokens;
  job.train.steps = kWithoutEnd;
  job.train.device = device;
  job.train.schedule = plan::LearningRateSchedule::kConstant;
  job.cluster.servers = 1;
  job.cluster.workers = 1;
  return job;
}

void KeepLogs(const PartOptions& options, const TrainRunner& runner, const std::string& name) {
  if (options.output.empty()) {
    return;
  }
  std::string all;
  const auto add = [&](const fs::path& path) {
    all +=
        fmt::format("==> {}\n{}\n", path.filename().string(), ReadFile(path.string()).value_or(""));
  };
  add(runner.folder() + "/output.log");
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(runner.log_folder(), error)) {
    if (entry.path().extension() == ".log") {
      add(entry.path());
    }
  }
  const std::string path = fmt::format("{}/{}.log", options.output, name);
  if (const absl::Status written = WriteFileAtomically(path, all); !written.ok()) {
    fmt::print(stderr, "{}: {}\n", path, Message(written));
  }
}

std::string LineOfLog(const TrainRunner& runner, const std::string& process,
                      const std::string& words) {
  std::istringstream lines(
      ReadFile(fmt::format("{}/{}.log", runner.log_folder(), process)).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (const size_t at = line.find(words); at != std::string::npos) {
      return line.substr(at);
    }
  }
  return "";
}

}  // namespace shoal::bench
