#include "client/cli/gpu_findings.h"

#include <algorithm>
#include <string>

#include "common/bytes.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::cli {
namespace {

// Below this a GPU waits for its weights more than it computes: half of PCIe 4.0 x16.
constexpr double kSlowCopies = 12e9;
// Both ways at once against the slower of the two: twice as much where nothing is shared.
constexpr double kNoOverlap = 1.3;

std::string Version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string Rate(double bytes_per_second) {
  return fmt::format("{:.1f} GB/s", bytes_per_second / 1e9);
}

Finding JudgeDriver(const GpuMachine& machine) {
  Finding finding{.feature = "GPUs"};
  if (!machine.found.ok()) {
    finding.health = Health::kMissing;
    finding.detail = Message(machine.found);
    finding.advice = machine.devices
                         ? "the kernel shows GPUs: give this process the driver (libcuda.so.1; in "
                           "a container --gpus all) and look at nvidia-smi; until then training "
                           "runs on the CPU"
                         : "training runs on the CPU";
    return finding;
  }
  finding.detail = fmt::format("{}, driver for CUDA {}, built with CUDA {}", machine.gpus.size(),
                               Version(machine.driver_version), Version(machine.runtime_version));
  const auto usable =
      std::ranges::find_if(machine.gpus, [](const FoundGpu& gpu) { return gpu.usable.ok(); });
  if (usable == machine.gpus.end()) {
    finding.health = Health::kLimited;
    finding.advice = "none can be computed on, so train.device auto takes the CPU";
    return finding;
  }
  finding.detail += fmt::format("; train.device auto takes cuda:{}", usable->gpu.index);
  if (machine.driver_version < machine.runtime_version) {
    finding.health = Health::kLimited;
    finding.advice = fmt::format(
        "the driver is older than CUDA {} that this was built with: it works within one major "
        "version, but update the driver",
        Version(machine.runtime_version));
  }
  return finding;
}

Finding JudgeGpu(const FoundGpu& found) {
  const gpu::GpuDescription& gpu = found.gpu;
  Finding finding{.feature = fmt::format("GPU {}", gpu.index)};
  finding.detail =
      fmt::format("{}, {}, capability {}.{}, at {}", gpu.name, FormatBytes(gpu.memory_bytes),
                  gpu.capability / 10, gpu.capability % 10, gpu.pci_address);
  if (!gpu.pci_link.empty()) {
    finding.detail += fmt::format(" ({})", gpu.pci_link);
  }
  if (!found.usable.ok()) {
    finding.health = Health::kMissing;
    finding.advice = Message(found.usable);
  }
  return finding;
}

Finding JudgeCopies(const FoundGpu& found) {
  Finding finding{.feature = fmt::format("copies of GPU {}", found.gpu.index)};
  if (!found.rates.has_value()) {
    finding.health = Health::kLimited;
    finding.detail = "not measured: " + found.rates_problem;
    finding.advice = "look at what else uses the GPU (nvidia-smi)";
    return finding;
  }
  const worker::CopyRates& rates = *found.rates;
  const double slower = std::min(rates.to_device, rates.to_host);
  finding.detail = fmt::format("pinned memory: {} to it, {} from it, {} both at once",
                               Rate(rates.to_device), Rate(rates.to_host), Rate(rates.both));
  if (slower < kSlowCopies) {
    finding.health = Health::kLimited;
    finding.advice =
        "weights and gradients cross this bus each step: look whether the link runs at its full "
        "width and speed (nvidia-smi -q -d PCIE), and whether the process runs on the GPU's NUMA "
        "node; train.residency step and train.push step move least";
  } else if (rates.both < kNoOverlap * slower) {
    finding.health = Health::kLimited;
    finding.advice =
        "copies of the two directions do not overlap: say cluster.pipeline.pace.duplex false, and "
        "look whether other devices share the bus";
  }
  return finding;
}

Finding JudgeLibrary(const FoundLibrary& library) {
  Finding finding{.feature = library.name};
  if (library.path.empty()) {
    finding.health = Health::kLimited;
    finding.detail = library.problem;
    finding.advice = fmt::format(
        "our own kernels serve instead; to have it used install it, or name its folder in "
        "SHOAL_CUDA_LIBRARIES");
  } else {
    finding.detail = library.path;
  }
  return finding;
}

}  // namespace

std::vector<Finding> JudgeGpus(const GpuMachine& machine) {
  std::vector<Finding> findings = {JudgeDriver(machine)};
  for (const FoundGpu& gpu : machine.gpus) {
    findings.push_back(JudgeGpu(gpu));
    if (gpu.usable.ok()) {
      findings.push_back(JudgeCopies(gpu));
    }
  }
  for (const FoundLibrary& library : machine.libraries) {
    findings.push_back(JudgeLibrary(library));
  }
  return findings;
}

nlohmann::json GpusJson(const GpuMachine& machine) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const FoundGpu& found : machine.gpus) {
    gpus.push_back(
        {{"index", found.gpu.index},
         {"name", found.gpu.name},
         {"memory_bytes", found.gpu.memory_bytes},
         {"capability", found.gpu.capability},
         {"multiprocessors", found.gpu.multiprocessors},
         {"pci_address", found.gpu.pci_address},
         {"pci_link", found.gpu.pci_link},
         {"numa_node", found.gpu.numa_node},
         {"usable", found.usable.ok()},
         {"problem", found.usable.ok() ? found.rates_problem : std::string(Message(found.usable))},
         {"copies", nullptr}});
    if (found.rates.has_value()) {
      gpus.back()["copies"] = {{"to_device_bytes_per_second", found.rates->to_device},
                               {"to_host_bytes_per_second", found.rates->to_host},
                               {"both_bytes_per_second", found.rates->both}};
    }
  }
  nlohmann::json libraries = nlohmann::json::array();
  for (const FoundLibrary& library : machine.libraries) {
    libraries.push_back(
        {{"name", library.name}, {"path", library.path}, {"problem", library.problem}});
  }
  return {{"event", "gpus"},
          {"problem", machine.found.ok() ? "" : std::string(Message(machine.found))},
          {"driver_version", machine.driver_version},
          {"runtime_version", machine.runtime_version},
          {"gpus", gpus},
          {"libraries", libraries}};
}

}  // namespace shoal::cli
