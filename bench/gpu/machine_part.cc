// The ceilings, and how copies to and from the host run: alone, against each other, beside matrix
// products.
#include <memory>

#include "absl/time/clock.h"
#include "bench/gpu/ceilings.h"
#include "bench/gpu/device_data.h"
#include "bench/gpu/parts.h"
#include "bench/gpu/timing.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using worker::Buffer;
using worker::Machine;
using worker::Stream;
using worker::StreamKind;

// Copies between pinned host memory and the device, a stream and two buffers for each direction.
class Bus {
 public:
  static absl::StatusOr<std::unique_ptr<Bus>> Make(Machine& machine, int64_t bytes) {
    std::unique_ptr<Bus> bus(new Bus(machine, bytes));
    for (Direction* direction : {&bus->up_, &bus->down_}) {
      SHOAL_ASSIGN_OR_RETURN(direction->host, bus->host_memory_->Allocate(bytes));
      SHOAL_ASSIGN_OR_RETURN(direction->device, machine.device->Allocate(bytes));
      direction->stream = machine.device->NewStream(StreamKind::kCopy);
      // Pages are touched and random before anything counts.
      SHOAL_RETURN_IF_ERROR(
          FillNormal(*direction->stream, direction->device.data(), DType::kF32, bytes / 4, 1.0, 1));
      SHOAL_RETURN_IF_ERROR(
          CopyNow(*direction->stream, direction->host.data(), direction->device.data(), bytes));
    }
    return bus;
  }

  void PutUp() { up_.stream->Copy(up_.device.data(), up_.host.data(), bytes_); }
  void PutDown() { down_.stream->Copy(down_.host.data(), down_.device.data(), bytes_); }
  absl::Status Wait() {
    SHOAL_RETURN_IF_ERROR(up_.stream->Synchronize());
    return down_.stream->Synchronize();
  }
  int64_t bytes() const { return bytes_; }

 private:
  struct Direction {
    Buffer host;
    Buffer device;
    std::unique_ptr<Stream> stream;
  };
  Bus(Machine& machine, int64_t bytes)
      : bytes_(bytes), host_memory_(machine.device->NewHostMemory(0)) {}

  const int64_t bytes_;
  const std::unique_ptr<worker::Memory> host_memory_;
  Direction up_, down_;
};

constexpr int kRounds = 5;

// Median seconds of `put` and the wait for it.
absl::StatusOr<double> BusSeconds(Bus& bus, const std::function<void()>& put) {
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const absl::Time begin = absl::Now();
    put();
    SHOAL_RETURN_IF_ERROR(bus.Wait());
    if (round > 0) {
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    }
  }
  return Median(std::move(seconds));
}

absl::Status AddBus(PartRun& run, Bus& bus) {
  const auto bytes = static_cast<double>(bus.bytes());
  SHOAL_ASSIGN_OR_RETURN(const double up, BusSeconds(bus, [&] { bus.PutUp(); }));
  SHOAL_ASSIGN_OR_RETURN(const double down, BusSeconds(bus, [&] { bus.PutDown(); }));
  SHOAL_ASSIGN_OR_RETURN(const double both, BusSeconds(bus, [&] {
                           bus.PutUp();
                           bus.PutDown();
                         }));
  PartReport& report = run.report();
  report.AddTable("Copies to and from pinned host memory",
                  fmt::format("{} MiB each way.", bus.bytes() >> 20),
                  {"copies", "GB/s", "of one after the other"});
  report.AddRow({"to the device", fmt::format("{:.1f}", bytes / up / 1e9), "-"});
  report.AddRow({"to the host", fmt::format("{:.1f}", bytes / down / 1e9), "-"});
  report.AddRow({"both at once, together", fmt::format("{:.1f}", 2 * bytes / both / 1e9),
                 fmt::format("{:.2f}", (up + down) / both)});
  report.SetValue("to_device_bytes_per_second", bytes / up);
  report.SetValue("to_host_bytes_per_second", bytes / down);
  report.SetValue("duplex_bytes_per_second", 2 * bytes / both);
  return absl::OkStatus();
}

// Matrix products while copies run both ways, and the copies while they do.
absl::Status AddOverlap(PartRun& run, Machine& machine, Bus& bus, double matrix_rate) {
  DeviceData data(*machine.device, machine.ops->stream(), run.options().seed);
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
  // As many products as the copies take long, so that both run all the while.
  const int64_t products = std::max<int64_t>(1, std::llround(copies * matrix_rate / flops));
  std::vector<double> compute_seconds, all_seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const absl::Time begin = absl::Now();
    bus.PutUp();
    bus.PutDown();
    for (int64_t i = 0; i < products; ++i) {
      machine.ops->Matmul({.a = a, .b = b, .c = c, .transpose_b = true});
    }
    SHOAL_RETURN_IF_ERROR(machine.ops->Finish());
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
  SHOAL_ASSIGN_OR_RETURN(Machine machine, run.options().make_machine(0));
  SHOAL_ASSIGN_OR_RETURN(const Ceilings ceilings,
                         MeasureCeilings(machine, run.sizes(), run.options().seed));
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
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Bus> bus, Bus::Make(machine, run.sizes().bus_bytes));
  SHOAL_RETURN_IF_ERROR(AddBus(run, *bus));
  return AddOverlap(run, machine, *bus, ceilings.matrix_flops_per_second);
}

}  // namespace shoal::bench
