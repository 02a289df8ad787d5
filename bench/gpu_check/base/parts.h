// The parts of the GPU check: what each one is, its limits, and how they run one by one.
//
// A part makes a ComputeDevice for itself (a device and its operators), so the same code runs on a
// GPU, on the fake one and on the CPU; tests run all parts at small sizes. Parts run in the calling
// thread. A part that fails says so in its report, and the next one runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/gpu_check/base/flat_kernels.h"
#include "bench/gpu_check/base/part_report.h"
#include "core/job/device_kind.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "worker/ops/compute_device.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::bench {

// "2.5 GiB".
std::string Gib(int64_t bytes);

// A microbatch of sequences of equal length.
struct TrainCase {
  std::string shape;   // plan::NamedShape
  int64_t tokens = 0;  // of the microbatch
  int64_t sequences = 1;
  int64_t layers = 0;  // only the shape's first ones; 0: all
  // The least recompute; more if the case does not fit with it.
  plan::Recompute recompute = plan::Recompute::kNone;

  // "124m, 16 x 1024 tokens", "7b, 7 layers, 32768 tokens".
  std::string Name() const;
  // NotFound if no shape has that name.
  absl::StatusOr<plan::ModelSpec> Spec() const;
};

// Sizes of what is measured.
struct PartSizes {
  int64_t copy_bytes = int64_t{1} << 32;  // between places on the device
  int64_t bus_bytes = int64_t{1} << 30;   // between host and device
  int64_t matrix = 8192;                  // rows and columns of a matrix product
  std::string kernel_shape = "7b";
  int64_t kernel_rows = 8192;
  std::string small_head_shape = "124m";  // of heads of 64
  worker::CheckScale op_checks = worker::CheckScale::kLarge;
  int64_t flat_checks = 1234567;  // elements
  // In order of importance: when time runs out, the rest is skipped. Two have a quarter of the
  // layers: whole models of that shape have room for the microbatch only with recompute, and their
  // steps take most of a minute.
  std::vector<TrainCase> train = {{"124m", 16384, 16},
                                  {"1.3b", 4096},
                                  {"7b", 4096},
                                  {"1.3b", 32768},
                                  {"124m", 4096},
                                  {"7b", 16384},
                                  {"1.3b", 16384},
                                  {"124m", 16384},
                                  {"124m", 32768},
                                  {"124m", 65536},
                                  {"7b", 32768, 1, 7, plan::Recompute::kFull},
                                  {"1.3b", 65536},
                                  {"7b", 65536, 1, 7, plan::Recompute::kFull}};
  int train_profiles = 4;         // the first ones, whose operators are timed too
  int train_steps = 50;           // measured, at most
  double train_warm_seconds = 1;  // before them, and at least one step
  double train_case_seconds = 3;  // after which two steps are enough
  double batch_seconds = 0.02;    // of calls timed together
  // Offload, with `kernel_shape`.
  int64_t offload_layers = 4;
  int offload_chunks = 6;
  std::vector<int64_t> offload_tokens = {16384, 65536};
  int longest_chunks = 15;
  int64_t longest_tokens = 131072;
  int64_t longest_step = 8192;
  int64_t offload_host_bytes = int64_t{56} << 30;  // pinned; at most half of the host's memory
  // Through servers: a microbatch, eight per step.
  TrainCase service = {"1.3b", 4096};
  int service_steps = 4;
};
PartSizes SmallSizes();  // for the CPU, within about a second

struct PartOptions {
  // `budget_bytes` of the device's memory, 0: all of it.
  std::function<absl::StatusOr<worker::ComputeDevice>(int64_t budget_bytes)> make_device;
  // Same as make_device, but with sums in any order if faster and products tuned at once, as jobs
  // have by default after a few steps; null: none.
  std::function<absl::StatusOr<worker::ComputeDevice>()> make_any_order_device;
  // Same as make_device without libraries, so that our own kernels run; null: none.
  std::function<absl::StatusOr<worker::ComputeDevice>()> make_own_kernels_device;
  // The optimizer's kernels on that device; null: none.
  const FlatKernels* flat = nullptr;
  // The machine, for the report: "what", "value".
  std::vector<std::pair<std::string, std::string>> machine;
  PartSizes sizes;
  std::string data;    // folder of test data with golden steps; empty: none
  std::string output;  // folder of the parts' JSON files; empty: none
  absl::Duration budget = absl::InfiniteDuration();  // of each part
  uint64_t seed = 1;
  // The device of worker processes, and the folder of `shoal`; empty: none.
  plan::DeviceKind device = plan::DeviceKind::kCuda;
  std::string programs;
  // Whether this process can no longer use the device, as a GPU after an illegal access; null:
  // it always can.
  std::function<bool()> is_lost;
  // Takes the matrix products that the library refused since the last call (our own kernels made
  // them), by shape and why; null: there is no library.
  std::function<std::map<std::string, int64_t>()> take_refused_products;
  // Takes which kernels ran attention's backward passes since the last call; null: unknown.
  std::function<std::string()> take_attention_backward;
  // Index of the first case of `train`, `kernels` or `ops` to run; results of earlier ones, from an
  // earlier process, are read from `output` and continued.
  int64_t from = 0;
};

// A running part's options, report and time.
class PartRun {
 public:
  PartRun(const PartOptions& options, PartReport& report);

  const PartOptions& options() const { return options_; }
  const PartSizes& sizes() const { return options_.sizes; }
  PartReport& report() { return report_; }
  // Whether enough time is left for work of about that duration.
  bool HasTimeFor(absl::Duration duration) const;
  double seconds() const;
  // The device for measuring training: make_any_order_device's.
  absl::StatusOr<worker::ComputeDevice> MakeTrainingDevice() const;
  // PartOptions::take_attention_backward; empty if unknown.
  std::string TakeAttentionBackward() const;

  // Call after a failed case. True if the device is lost: the part must end, and its report says
  // that a new process is to continue after case `index`.
  bool IsLostAt(int64_t index);
  // Adds to the failures of cases, also an earlier process's, which make up the part's status.
  void Failed(const std::string& what);
  absl::Status Outcome() const;

 private:
  const PartOptions& options_;
  PartReport& report_;
  const absl::Time begin_;
};

struct Part {
  std::string_view name;
  std::string_view what;
  // FailedPrecondition: cannot run here, and why; counts as skipped. Other errors count as failed.
  absl::Status (*run)(PartRun& run);
};

// In the order they run.
std::span<const Part> Parts();

// The part of that name, or all if it is empty; otherwise InvalidArgument, which names all.
absl::StatusOr<std::vector<Part>> ChosenParts(std::string_view only);

// What PartOptions::take_refused_products returned during the part; none if it was never called.
std::optional<std::map<std::string, int64_t>> RefusedProductsOf(const PartReport& report);

// The case from which a new process continues a part whose device was lost (PartOptions::from); 0:
// none.
int64_t GoesOnFrom(const PartReport& report);

// Runs the parts and returns their reports.
std::vector<PartReport> RunParts(const std::vector<Part>& parts, const PartOptions& options);

// Each is defined in the file of its name.
absl::Status RunMachinePart(PartRun& run);
absl::Status RunOpsPart(PartRun& run);
absl::Status RunGoldenPart(PartRun& run);
absl::Status RunServedPart(PartRun& run);
absl::Status RunKernelsPart(PartRun& run);
absl::Status RunTrainPart(PartRun& run);
absl::Status RunOffloadPart(PartRun& run);
absl::Status RunServicePart(PartRun& run);

}  // namespace shoal::bench
