// Measures each operator's time against its floor.
#include <algorithm>

#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/timing.h"
#include "bench/gpu_check/parts/kernel_cases.h"
#include "bench/gpu_check/report/bars.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using CasesOr = absl::StatusOr<std::vector<KernelCase>>;

// Assumed for one call of KernelTable::Add before any was measured.
constexpr absl::Duration kOfCases = absl::Seconds(2);

struct Found {
  std::string name;
  double ratio = 0;
};

class KernelTable {
 public:
  KernelTable(PartRun& run, const Ceilings& ceilings) : run_(run), ceilings_(ceilings) {
    const nlohmann::json& values = run.report().values();
    attention_ = values.value("attention", attention_);
    for (const auto& [name, ratio] : values.value("ratios", Ratios())) {
      Note(name, ratio);
    }
  }

  using MakeCases = std::function<CasesOr(worker::Ops&, DeviceData&)>;
  // Measures the cases of `make` on that device, and frees their data. Does nothing if an earlier
  // process measured them, or time is short. Aborted if the device is lost. `of_bar`: the bar
  // counts as measured only with these.
  absl::Status Add(worker::ComputeDevice& compute_device, const MakeCases& make,
                   bool of_bar = true) {
    const int64_t index = next_++;
    if (index < run_.options().from) {
      return absl::OkStatus();
    }
    if (!run_.HasTimeFor(longest_)) {
      left_out_ += of_bar ? 1 : 0;
      return absl::OkStatus();
    }
    const double begin = run_.seconds();
    const absl::Status status = AddCases(compute_device, make);
    if (status.ok()) {
      longest_ = std::max(longest_, absl::Seconds(run_.seconds() - begin));
      return status;
    }
    run_.Failed(std::string(Message(status)));
    return run_.IsLostAt(index) ? absl::AbortedError("the device is lost") : status;
  }

  void AddBar() {
    std::sort(slow_.begin(), slow_.end(),
              [](const Found& a, const Found& b) { return a.ratio < b.ratio; });
    std::vector<std::string> found;
    for (const Found& slow : slow_) {
      found.push_back(fmt::format("{} {:.2f}", slow.name, slow.ratio));
    }
    if (slow_.empty() && !worst_.name.empty()) {
      found.push_back(fmt::format("{:.2f} ({})", worst_.ratio, worst_.name));
    }
    if (left_out_ > 0) {
      found.push_back(fmt::format("no time was left for {} groups of operators", left_out_));
    }
    const std::string all = fmt::format("{}", fmt::join(found, "; "));
    run_.report().AddBar(left_out_ > 0 && slow_.empty() ? KernelsBar().NotMeasured(all)
                                                        : KernelsBar().Found(all, slow_.empty()));
  }

 private:
  using Ratios = std::vector<std::pair<std::string, double>>;

  absl::Status AddCases(worker::ComputeDevice& compute_device, const MakeCases& make) {
    DeviceData data(*compute_device.device, compute_device.ops->stream(), run_.options().seed);
    SHOAL_ASSIGN_OR_RETURN(const std::vector<KernelCase> cases, make(*compute_device.ops, data));
    nlohmann::json pair;
    for (const KernelCase& c : cases) {
      std::string by;
      SHOAL_ASSIGN_OR_RETURN(const double seconds, AddCase(*compute_device.ops, c, by));
      if (!c.attention.empty()) {
        pair["case"] = c.attention;
        pair[c.name == "AttentionForward" ? "forward_seconds" : "backward_seconds"] = seconds;
        pair["backward_by"] = by;
      }
    }
    if (!pair.empty()) {
      attention_.push_back(pair);
      run_.report().SetValue("attention", attention_);
    }
    return absl::OkStatus();
  }

  // `by`: the kernels that ran attention's backward pass; empty for other operators.
  absl::StatusOr<double> AddCase(worker::Ops& ops, const KernelCase& c, std::string& by) {
    (void)run_.TakeAttentionBackward();  // discards those of earlier cases
    SHOAL_ASSIGN_OR_RETURN(const double seconds,
                           MedianSeconds(ops, run_.sizes().batch_seconds, c.call));
    by = run_.TakeAttentionBackward();
    const Floor floor = FloorOf(c.cost, ceilings_);
    const double ratio = floor.seconds / seconds;
    run_.report().AddRow({c.name, by.empty() ? c.shape : c.shape + ", by " + by,
                          floor.memory_bound ? "memory" : "matrix",
                          fmt::format("{:.2f}", 1e6 * floor.seconds),
                          fmt::format("{:.2f}", 1e6 * seconds), fmt::format("{:.2f}", ratio)});
    if (floor.memory_bound) {
      Note(c.name, ratio);
      run_.report().SetValue("ratios", ratios_);
    }
    return seconds;
  }
  void Note(const std::string& name, double ratio) {
    ratios_.emplace_back(name, ratio);
    worst_ = worst_.name.empty() || ratio < worst_.ratio ? Found{name, ratio} : worst_;
    if (ratio < kLeastOfFloor) {
      slow_.push_back({name, ratio});
    }
  }

  PartRun& run_;
  const Ceilings ceilings_;
  nlohmann::json attention_ = nlohmann::json::array();
  int64_t next_ = 0;
  int64_t left_out_ = 0;  // calls of Add with of_bar
  absl::Duration longest_ = kOfCases;
  Ratios ratios_;  // of memory-bound operators
  Found worst_;
  std::vector<Found> slow_;  // memory-bound and under the bar
};

// Attention by our own kernels, as without libraries, or when one order of sums is asked for.
absl::Status AddOwnAttention(PartRun& run, KernelTable& table) {
  if (!run.options().make_own_kernels_device) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(worker::ComputeDevice compute_device,
                         run.options().make_own_kernels_device());
  for (const AttentionSize& size : AttentionSizes(run.sizes())) {
    const auto make = [&](worker::Ops& ops, DeviceData& data) -> CasesOr {
      SHOAL_ASSIGN_OR_RETURN(std::vector<KernelCase> cases, MakeAttentionCases(ops, data, size));
      for (KernelCase& c : cases) {
        c.name += ", our own kernels";
        c.attention.clear();  // PyTorch is compared with what jobs run
      }
      return cases;
    };
    SHOAL_RETURN_IF_ERROR(table.Add(compute_device, make, /*of_bar=*/false));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunKernelsPart(PartRun& run) {
  const std::optional<plan::ModelSpec> spec = plan::NamedShape(run.sizes().kernel_shape);
  if (!spec) {
    return InvalidArgument("no shape is called {}", run.sizes().kernel_shape);
  }
  SHOAL_ASSIGN_OR_RETURN(worker::ComputeDevice compute_device, run.MakeTrainingDevice());
  SHOAL_ASSIGN_OR_RETURN(const Ceilings ceilings,
                         MeasureCeilings(compute_device, run.sizes(), run.options().seed));
  const int64_t rows = run.sizes().kernel_rows;
  run.report().AddTable(
      "Kernels against their floors",
      fmt::format("Shape {}, {} rows, bf16, random data, medians. The floor is bytes (each input "
                  "read once, each output written once) over the copy bandwidth of {:.0f} GB/s, or "
                  "operations over the matrix rate of {:.0f} TFLOP/s, whichever is longer. "
                  "Attention may add in any order, as in jobs unless they say otherwise.",
                  run.sizes().kernel_shape, rows, ceilings.copy_bytes_per_second / 1e9,
                  ceilings.matrix_flops_per_second / 1e12),
      {"operator", "size", "bound by", "floor, us", "measured, us", "floor / measured"});
  KernelTable table(run, ceilings);
  for (const AttentionSize& size : AttentionSizes(run.sizes())) {
    SHOAL_RETURN_IF_ERROR(table.Add(compute_device, [&](worker::Ops& ops, DeviceData& data) {
      return MakeAttentionCases(ops, data, size);
    }));
  }
  for (auto* const make : {MakeMatrixCases, MakeBlockCases, MakeEndCases}) {
    SHOAL_RETURN_IF_ERROR(table.Add(compute_device, [&](worker::Ops& ops, DeviceData& data) {
      return make(ops, data, *spec, rows);
    }));
  }
  if (const FlatKernels* const flat = run.options().flat; flat != nullptr) {
    absl::Status failed;
    const int64_t count = spec->hidden * spec->mlp().intermediate;
    SHOAL_RETURN_IF_ERROR(table.Add(compute_device, [&](worker::Ops& ops, DeviceData& data) {
      return MakeFlatCases(*flat, ops, data, count, failed);
    }));
    SHOAL_RETURN_IF_ERROR(failed);
  }
  SHOAL_RETURN_IF_ERROR(AddOwnAttention(run, table));
  table.AddBar();
  return run.Outcome();
}

}  // namespace shoal::bench
