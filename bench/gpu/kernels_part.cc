// Each operator's time against its floor.
#include "bench/gpu/kernel_cases.h"
#include "bench/gpu/parts.h"
#include "bench/gpu/timing.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using MakeCases = absl::StatusOr<std::vector<KernelCase>> (*)(worker::Ops&, DeviceData&,
                                                              const plan::ModelSpec&, int64_t);

// A memory-bound kernel is to reach this share of the copy bandwidth.
constexpr double kWanted = 0.8;

struct Worst {
  std::string name;
  double ratio = 2;
};

absl::Status AddCases(PartRun& run, worker::Machine& machine, const Ceilings& ceilings,
                      const plan::ModelSpec& spec, MakeCases make, Worst& worst) {
  DeviceData data(*machine.device, machine.ops->stream(), run.options().seed);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<KernelCase> cases,
                         make(*machine.ops, data, spec, run.sizes().kernel_rows));
  for (const KernelCase& c : cases) {
    SHOAL_ASSIGN_OR_RETURN(const double seconds,
                           MedianSeconds(*machine.ops, run.sizes().batch_seconds, c.call));
    const Floor floor = FloorOf(c.cost, ceilings);
    const double ratio = floor.seconds / seconds;
    run.report().AddRow({c.name, c.shape, floor.memory_bound ? "memory" : "matrix",
                         fmt::format("{:.2f}", 1e6 * floor.seconds),
                         fmt::format("{:.2f}", 1e6 * seconds), fmt::format("{:.2f}", ratio)});
    if (floor.memory_bound && ratio < worst.ratio) {
      worst = {c.name, ratio};
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunKernelsPart(PartRun& run) {
  const std::optional<plan::ModelSpec> spec = plan::NamedShape(run.sizes().kernel_shape);
  if (!spec) {
    return InvalidArgument("no shape is called {}", run.sizes().kernel_shape);
  }
  SHOAL_ASSIGN_OR_RETURN(worker::Machine machine, run.options().make_machine(0));
  SHOAL_ASSIGN_OR_RETURN(const Ceilings ceilings,
                         MeasureCeilings(machine, run.sizes(), run.options().seed));
  run.report().AddTable(
      "Kernels against their floors",
      fmt::format("Shape {}, {} rows, bf16, random data, medians. The floor is bytes (each input "
                  "read once, each output written once) over the copy bandwidth of {:.0f} GB/s, or "
                  "operations over the matrix rate of {:.0f} TFLOP/s, whichever is longer.",
                  run.sizes().kernel_shape, run.sizes().kernel_rows,
                  ceilings.copy_bytes_per_second / 1e9, ceilings.matrix_flops_per_second / 1e12),
      {"operator", "size", "bound by", "floor, us", "measured, us", "floor / measured"});
  Worst worst;
  for (const MakeCases make : {MakeMatrixCases, MakeAttentionCases, MakeBlockCases, MakeEndCases}) {
    SHOAL_RETURN_IF_ERROR(AddCases(run, machine, ceilings, *spec, make, worst));
  }
  run.report().AddBar({"memory-bound kernels, the slowest", fmt::format("at least {:.1f}", kWanted),
                       fmt::format("{:.2f} ({})", worst.ratio, worst.name),
                       worst.ratio >= kWanted});
  return absl::OkStatus();
}

}  // namespace shoal::bench
