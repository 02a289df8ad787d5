// Measures the ceilings and copies to and from the host: alone, in both directions, and
// concurrently with matrix products.
#include <memory>

#include "absl/time/clock.h"
#include "bench/gpu_check/base/bus.h"
#include "bench/gpu_check/base/device_data.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/timing.h"
#include "bench/gpu_check/parts/ceilings.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using worker::ComputeDevice;

constexpr int kRounds = 5;

absl::Status AddBus(PartRun& run, Bus& bus) {
  SHOAL_ASSIGN_OR_RETURN(const BusRates rates, MeasureBus(bus));
  const double in_turn = 2 / (1 / rates.to_device + 1 / rates.to_host);
  PartReport& report = run.report();
  report.AddTable("Copies to and from pinned host memory",
                  fmt::format("{} MiB each way.", bus.bytes() >> 20),
                  {"copies", "GB/s", "of one after the other"});
  report.AddRow({"to the device", fmt::format("{:.1f}", rates.to_device / 1e9), "-"});
  report.AddRow({"to the host", fmt::format("{:.1f}", rates.to_host / 1e9), "-"});
  report.AddRow({"both at once, together", fmt::format("{:.1f}", rates.duplex / 1e9),
                 fmt::format("{:.2f}", rates.duplex / in_turn)});
  report.SetValue("to_device_bytes_per_second", rates.to_device);
  report.SetValue("to_host_bytes_per_second", rates.to_host);
  report.SetValue("duplex_bytes_per_second", rates.duplex);
  return absl::OkStatus();
}

// Times matrix products during copies in both directions, and the copies meanwhile.
absl::Status AddOverlap(PartRun& run, ComputeDevice& compute_device, Bus& bus, double matrix_rate) {
  DeviceData data(*compute_device.device, compute_device.ops->stream(), run.options().seed);
  const int64_t n = run.sizes().matrix;
  SHOAL_ASSIGN_OR_RETURN(const worker::Matrix a, data.Normal(DType::kBF16, n, n));
  SHOAL_ASSIGN_OR_RETURN(const worker::Matrix b, data.Normal(DType::kBF16, n, n));
  SHOAL_ASSIGN_OR_RETURN(const worker::Matrix c, data.Normal(DType::kBF16, n, n));
  const double flops =
      2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  SHOAL_ASSIGN_OR_RETURN(const double copies, BusSeconds(bus, [&] {
                           bus.PutUp();
                           bus.PutDown();
                         }));
  // As many products as take as long as the copies, so that both run throughout.
  const int64_t products = std::max<int64_t>(1, std::llround(copies * matrix_rate / flops));
  std::vector<double> compute_seconds, all_seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const absl::Time begin = absl::Now();
    bus.PutUp();
    bus.PutDown();
    for (int64_t i = 0; i < products; ++i) {
      compute_device.ops->Matmul({.a = a, .b = b, .c = c, .transpose_b = true});
    }
    SHOAL_RETURN_IF_ERROR(compute_device.ops->Finish());
    const absl::Time computed = absl::Now();
    SHOAL_RETURN_IF_ERROR(bus.Wait());
    if (round > 0) {
      compute_seconds.push_back(absl::ToDoubleSeconds(computed - begin));
      all_seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    }
  }
  const double alone = flops * static_cast<double>(products) / matrix_rate;
  run.report().AddTable("Copies beside matrix products",
                        "Copies both ways and as many products as take as long alone, at once.",
                        {"what", "alone, ms", "beside the other, ms", "longer by"});
  const double beside = Median(compute_seconds), all = Median(all_seconds);
  run.report().AddRow({fmt::format("{} products", products), fmt::format("{:.2f}", 1e3 * alone),
                       fmt::format("{:.2f}", 1e3 * beside),
                       fmt::format("{:+.1f}%", 100 * (beside / alone - 1))});
  run.report().AddRow({"all of it", fmt::format("{:.2f}", 1e3 * std::max(alone, copies)),
                       fmt::format("{:.2f}", 1e3 * all),
                       fmt::format("{:+.1f}%", 100 * (all / std::max(alone, copies) - 1))});
  return absl::OkStatus();
}

}  // namespace

absl::Status RunMachinePart(PartRun& run) {
  PartReport& report = run.report();
  report.AddTable("Machine", "", {"what", "value"});
  for (const auto& [what, value] : run.options().machine) {
    report.AddRow({what, value});
  }
  SHOAL_ASSIGN_OR_RETURN(ComputeDevice compute_device, run.options().make_device(0));
  SHOAL_ASSIGN_OR_RETURN(const Ceilings ceilings,
                         MeasureCeilings(compute_device, run.sizes(), run.options().seed));
  const int64_t n = run.sizes().matrix;
  report.AddTable("Ceilings", "Measured in this run on random data; every ratio refers to them.",
                  {"what", "measured", "unit"});
  report.AddRow({fmt::format("copy on the device, {} MiB, bytes read and written",
                             run.sizes().copy_bytes >> 20),
                 fmt::format("{:.0f}", ceilings.copy_bytes_per_second / 1e9), "GB/s"});
  report.AddRow({fmt::format("bf16 matrix product, {} x {} x {}", n, n, n),
                 fmt::format("{:.1f}", ceilings.matrix_flops_per_second / 1e12), "TFLOP/s"});
  report.SetValue("copy_bytes_per_second", ceilings.copy_bytes_per_second);
  report.SetValue("matrix_flops_per_second", ceilings.matrix_flops_per_second);
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Bus> bus,
                         Bus::Make(compute_device, run.sizes().bus_bytes));
  SHOAL_RETURN_IF_ERROR(AddBus(run, *bus));
  return AddOverlap(run, compute_device, *bus, ceilings.matrix_flops_per_second);
}

}  // namespace shoal::bench
