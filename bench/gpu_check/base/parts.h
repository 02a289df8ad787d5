// The parts of the GPU check: what each is, what it may take, and how they are run one by one.
//
// A part makes a ComputeDevice for itself (a device and the operators on it), so that the same code
// runs on a GPU, over the fake one and on the CPU; tests run all parts at small sizes. Parts run in
// the calling thread. A part that fails says so in its report and the next one runs.
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
  int64_t layers = 0;  // of the shape's, the first ones alone; 0: all
  // At least that much: what does not fit with it is tried with more.
  plan::Recompute recompute = plan::Recompute::kNone;

  // "124m, 16 x 1024 tokens", "7b, 7 layers, 32768 tokens".
  std::string Name() const;
  // NotFound where no shape has that name.
  absl::StatusOr<plan::ModelSpec> Spec() const;
};

// How large what is measured is.
struct PartSizes {
  int64_t copy_bytes = int64_t{1} << 32;  // between places on the device
  int64_t bus_bytes = int64_t{1} << 30;   // between host and device
  int64_t matrix = 8192;                  // rows and columns of a matrix product
  std::string kernel_shape = "7b";
  int64_t kernel_rows = 8192;
  std::string small_head_shape = "124m";  // of heads of 64
  worker::CheckScale op_checks = worker::CheckScale::kLarge;
  int64_t flat_checks = 1234567;  // elements
  // In order of importance: where time ends, the rest is left out. Two have a quarter of the
  // layers: whole models of that shape have no room for the microbatch but with recompute, and
  // their steps take most of a minute.
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
  int train_profiles = 4;         // cases, from the first on, whose operators are timed too
  int train_steps = 50;           // that count, at most
  double train_warm_seconds = 1;  // before them, and at least one step
  double train_case_seconds = 3;  // after so long two steps are enough
  double batch_seconds = 0.02;    // of calls that are timed together
  // Offload, with `kernel_shape`.
  int64_t offload_layers = 4;
  int offload_chunks = 6;
  std::vector<int64_t> offload_tokens = {16384, 65536};
  int longest_chunks = 15;
  int64_t longest_tokens = 131072;
  int64_t longest_step = 8192;
  int64_t offload_host_bytes = int64_t{56} << 30;  // pinned; at most half of what there is
  // Through servers: a microbatch, of which a step has eight.
  TrainCase service = {"1.3b", 4096};
  int service_steps = 4;
};
PartSizes SmallSizes();  // that the CPU runs within a second or so

struct PartOptions {
  // `budget_bytes` of the device's memory, 0: all of it.
  std::function<absl::StatusOr<worker::ComputeDevice>(int64_t budget_bytes)> make_device;
  // The same, where sums may be in any order if that is faster and products are tuned at once, as
  // jobs have it after a few steps unless they say otherwise; null: there is no other.
  std::function<absl::StatusOr<worker::ComputeDevice>()> make_any_order_device;
  // The same without libraries, whose work kernels of our own then do; null: there are none.
  std::function<absl::StatusOr<worker::ComputeDevice>()> make_own_kernels_device;
  // The optimizer's on that device; null: none.
  const FlatKernels* flat = nullptr;
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
  // Whether the device is of no more use to this process, as a GPU is after an illegal access;
  // null: it always is.
  std::function<bool()> is_lost;
  // Matrix products that the library refused since the last call, so that kernels of our own made
  // them, by shape and why; null: there is no library.
  std::function<std::map<std::string, int64_t>()> take_refused_products;
  // By whose kernels attention's backward passes ran since the last call; null: nobody knows.
  std::function<std::string()> take_attention_backward;
  // The first case of `train`, `kernels` or `ops`; what an earlier process has found of those
  // before it is read from `output` and gone on with.
  int64_t from = 0;
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
  // What training is measured on: make_any_order_device's.
  absl::StatusOr<worker::ComputeDevice> MakeTrainingDevice() const;
  // PartOptions::take_attention_backward, empty where nobody knows.
  std::string TakeAttentionBackward() const;

  // Of a case that failed: where the device is lost, the part ends and says where a new process is
  // to go on, which is true.
  bool IsLostAt(int64_t index);
  // What is wrong with cases so far, those of an earlier process among them, as the part's status.
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
  // FailedPrecondition: it cannot run here, and says why. That is skipped, all else failed.
  absl::Status (*run)(PartRun& run);
};

// In the order they run.
std::span<const Part> Parts();

// The parts of that name, all for an empty one; InvalidArgument, naming all, for one that is none.
absl::StatusOr<std::vector<Part>> ChosenParts(std::string_view only);

// What PartOptions::take_refused_products told while the part ran; one that was never asked: none.
std::optional<std::map<std::string, int64_t>> RefusedProductsOf(const PartReport& report);

// Where a new process goes on with a part whose device was lost (PartOptions::from); 0: nowhere.
int64_t GoesOnFrom(const PartReport& report);

// Runs them and returns their reports.
std::vector<PartReport> RunParts(const std::vector<Part>& parts, const PartOptions& options);

// Each in a file of its name.
absl::Status RunMachinePart(PartRun& run);
absl::Status RunOpsPart(PartRun& run);
absl::Status RunGoldenPart(PartRun& run);
absl::Status RunServedPart(PartRun& run);
absl::Status RunKernelsPart(PartRun& run);
absl::Status RunTrainPart(PartRun& run);
absl::Status RunOffloadPart(PartRun& run);
absl::Status RunServicePart(PartRun& run);

}  // namespace shoal::bench
