// The parts of the GPU check: what each is, what it may take, and how they are run one by one.
//
// A part makes a Machine for itself (a device and the operators on it), so that the same code runs
// on a GPU, over the emulated one and on the CPU; tests run all parts at small sizes. Parts run in
// the calling thread. A part that fails says so in its report and the next one runs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/gpu/part_report.h"
#include "plan/device_kind.h"
#include "worker/ops/machine.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::bench {

// A microbatch of one sequence that fills it.
struct TrainCase {
  std::string shape;  // plan::NamedShape
  int64_t tokens = 0;
};

// How large what is measured is.
struct PartSizes {
  int64_t copy_bytes = int64_t{1} << 32;  // between places on the device
  int64_t bus_bytes = int64_t{1} << 30;   // between host and device
  int64_t matrix = 8192;                  // rows and columns of a matrix product
  std::string kernel_shape = "7b";
  int64_t kernel_rows = 8192;
  worker::CheckScale op_checks = worker::CheckScale::kLarge;
  // In order of importance: where time ends, the rest is left out.
  std::vector<TrainCase> train = {{"124m", 4096},  {"1.3b", 4096},  {"7b", 4096},
                                  {"1.3b", 32768}, {"7b", 16384},   {"124m", 16384},
                                  {"1.3b", 16384}, {"124m", 65536}, {"124m", 32768},
                                  {"1.3b", 65536}, {"7b", 32768},   {"7b", 65536}};
  int train_steps = 7;
  double batch_seconds = 0.005;  // of calls that are timed together
  // Offload, with `kernel_shape`.
  int64_t offload_layers = 4;
  int offload_chunks = 6;
  std::vector<int64_t> offload_tokens = {16384, 65536};
  int longest_chunks = 15;
  int64_t longest_tokens = 131072;
  int64_t longest_step = 8192;
  int64_t offload_host_bytes = int64_t{56} << 30;  // pinned, for what is offloaded
  // Through servers: a microbatch, of which a step has eight.
  TrainCase service = {"1.3b", 4096};
  int service_steps = 5;
};
PartSizes SmallSizes();  // that the CPU runs within a second or so

struct PartOptions {
  // `budget_bytes` of the device's memory, 0: all of it.
  std::function<absl::StatusOr<worker::Machine>(int64_t budget_bytes)> make_machine;
  // Of the machine, for the report: "what", "value".
  std::vector<std::pair<std::string, std::string>> machine;
  PartSizes sizes;
  std::string data;    // folder of test data with golden steps; empty: none
  std::string output;  // folder of the parts' JSON files; empty: none
  absl::Duration budget = absl::InfiniteDuration();  // of each part
  uint64_t seed = 1;
  // What workers that are processes compute on, and the folder of `shoal`; empty: none.
  plan::DeviceKind device = plan::DeviceKind::kCuda;
  std::string programs;
};

// What a part runs with.
class PartRun {
 public:
  PartRun(const PartOptions& options, PartReport& report);

  const PartOptions& options() const { return options_; }
  const PartSizes& sizes() const { return options_.sizes; }
  PartReport& report() { return report_; }
  // Whether there is time for what takes about so long.
  bool HasTimeFor(absl::Duration duration) const;
  double seconds() const;

 private:
  const PartOptions& options_;
  PartReport& report_;
  const absl::Time begin_;
};

struct Part {
  std::string_view name;
  std::string_view what;
  // FailedPrecondition: it cannot run here, and says why. That is skipped, all else failed.
  absl::Status (*run)(PartRun& run);
};

// In the order they run.
std::span<const Part> Parts();

// The parts of that name, all for an empty one; InvalidArgument, naming all, for one that is none.
absl::StatusOr<std::vector<Part>> ChosenParts(std::string_view only);

// Runs them and returns their reports.
std::vector<PartReport> RunParts(const std::vector<Part>& parts, const PartOptions& options);

// Each in a file of its name.
absl::Status RunMachinePart(PartRun& run);
absl::Status RunOpsPart(PartRun& run);
absl::Status RunGoldenPart(PartRun& run);
absl::Status RunKernelsPart(PartRun& run);
absl::Status RunTrainPart(PartRun& run);
absl::Status RunOffloadPart(PartRun& run);
absl::Status RunServicePart(PartRun& run);

}  // namespace shoal::bench
