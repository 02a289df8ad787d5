#include "cli/doctor/gpu_findings.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/plan/memory/gpu_turn.h"
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

Finding JudgeDriver(const GpuSurvey& survey) {
  Finding finding{.feature = "GPUs"};
  if (!survey.found.ok()) {
    finding.health = Health::kMissing;
    finding.detail = Message(survey.found);
    finding.advice = survey.devices
                         ? "the kernel shows GPUs: give this process the driver (libcuda.so.1; in "
                           "a container --gpus all) and look at nvidia-smi; until then training "
                           "runs on the CPU"
                         : "training runs on the CPU";
    return finding;
  }
  finding.detail = fmt::format("{}, driver for CUDA {}, built with CUDA {}", survey.gpus.size(),
                               Version(survey.driver_version), Version(survey.runtime_version));
  const auto usable =
      std::ranges::find_if(survey.gpus, [](const FoundGpu& gpu) { return gpu.usable.ok(); });
  if (usable == survey.gpus.end()) {
    finding.health = Health::kLimited;
    finding.advice = "none can be computed on, so train.device auto takes the CPU";
    return finding;
  }
  finding.detail += fmt::format("; train.device auto takes cuda:{}", usable->gpu.index);
  if (survey.driver_version < survey.runtime_version) {
    finding.health = Health::kLimited;
    finding.advice = fmt::format(
        "the driver is older than CUDA {} that this was built with: it works within one major "
        "version, but update the driver",
        Version(survey.runtime_version));
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

constexpr const char* kTooLittleForServers =
    "use more GPUs, servers on other machines or a smaller model, or say service.memory: host";

Finding JudgeServersOn(const FoundGpu& found, const plan::GpuTurn& gpu, const GpuNeeds& needs) {
  Finding finding{.feature = fmt::format("servers on GPU {}", found.gpu.index), .required = true};
  int64_t bytes = 0;
  std::vector<size_t> servers;
  for (size_t server = 0; server < needs.servers.size(); ++server) {
    if (gpu.Has(server)) {
      bytes += needs.servers[server];
      servers.push_back(server);
    }
  }
  finding.detail = fmt::format("{} {} {} of its memory", servers.size() == 1 ? "server" : "servers",
                               fmt::join(servers, ", "),
                               (servers.size() == 1 ? "takes " : "take ") + FormatBytes(bytes));
  if (!found.free_bytes.has_value()) {
    finding.health = Health::kLimited;
    finding.advice = "what is free there cannot be told; look at what else uses it (nvidia-smi)";
    return finding;
  }
  finding.detail += fmt::format("; {} are free", FormatBytes(*found.free_bytes));
  if (bytes > *found.free_bytes) {
    finding.health = Health::kMissing;
    finding.advice = kTooLittleForServers;
  } else if (const int64_t workers = gpu.Share(needs.workers); workers > 0) {
    const int64_t left = std::max<int64_t>(0, found.budget_bytes - bytes);
    finding.detail += fmt::format(", which leaves {} to {} {}", FormatBytes(left), workers,
                                  workers == 1 ? "worker" : "workers");
    if (left == 0) {
      finding.health = Health::kLimited;
      finding.advice = std::string("nothing is left to workers: ") + kTooLittleForServers;
    }
  }
  return finding;
}

// Which machine's GPUs they will be on is not known.
Finding JudgeServersApart(const std::vector<const FoundGpu*>& usable, const GpuNeeds& needs) {
  Finding finding{.feature = "GPUs of servers"};
  const int64_t bytes = std::ranges::max(needs.servers);
  std::optional<int64_t> most;
  for (const FoundGpu* found : usable) {
    most = std::max(most, found->free_bytes);  // nullopt is less than all else
  }
  finding.detail = fmt::format("a server takes up to {} of its GPU", FormatBytes(bytes));
  if (!most.has_value()) {
    finding.detail += usable.empty() ? "; there is none here that it could use"
                                     : "; what is free of those here cannot be told";
    return finding;
  }
  finding.detail += fmt::format("; here {} are free", FormatBytes(*most));
  if (bytes > *most) {
    finding.health = Health::kLimited;
    finding.advice =
        std::string("no server fits on a GPU of this machine: ") + kTooLittleForServers;
  }
  return finding;
}

std::vector<Finding> JudgeServers(const GpuSurvey& survey, const GpuNeeds& needs) {
  std::vector<const FoundGpu*> usable;
  for (const FoundGpu& found : survey.gpus) {
    if (found.usable.ok()) {
      usable.push_back(&found);
    }
  }
  if (needs.servers.empty()) {
    return {};
  }
  if (!needs.local) {
    return {JudgeServersApart(usable, needs)};
  }
  if (usable.empty()) {
    return {{.feature = "servers on GPUs",
             .health = Health::kMissing,
             .required = true,
             .detail = "the job says service.memory: cuda, and no GPU here can be used",
             .advice = "run it on a machine with a GPU, or say service.memory: host"}};
  }
  std::vector<Finding> findings;
  for (size_t place = 0; place < std::min(usable.size(), needs.servers.size()); ++place) {
    findings.push_back(
        JudgeServersOn(*usable[place], {.place = place, .gpus = usable.size()}, needs));
  }
  return findings;
}

}  // namespace

std::vector<Finding> JudgeGpus(const GpuSurvey& survey, const GpuNeeds& needs) {
  std::vector<Finding> findings = {JudgeDriver(survey)};
  for (const FoundGpu& gpu : survey.gpus) {
    findings.push_back(JudgeGpu(gpu));
    if (gpu.usable.ok()) {
      findings.push_back(JudgeCopies(gpu));
    }
  }
  std::ranges::move(JudgeServers(survey, needs), std::back_inserter(findings));
  for (const FoundLibrary& library : survey.libraries) {
    findings.push_back(JudgeLibrary(library));
  }
  return findings;
}

nlohmann::json GpusJson(const GpuSurvey& survey, const GpuNeeds& needs) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const FoundGpu& found : survey.gpus) {
    gpus.push_back(
        {{"index", found.gpu.index},
         {"name", found.gpu.name},
         {"memory_bytes", found.gpu.memory_bytes},
         {"free_bytes", nullptr},
         {"budget_bytes", found.budget_bytes},
         {"capability", found.gpu.capability},
         {"multiprocessors", found.gpu.multiprocessors},
         {"pci_address", found.gpu.pci_address},
         {"pci_link", found.gpu.pci_link},
         {"numa_node", found.gpu.numa_node},
         {"usable", found.usable.ok()},
         {"problem", found.usable.ok() ? found.rates_problem : std::string(Message(found.usable))},
         {"copies", nullptr}});
    if (found.free_bytes.has_value()) {
      gpus.back()["free_bytes"] = *found.free_bytes;
    }
    if (found.rates.has_value()) {
      gpus.back()["copies"] = {{"to_device_bytes_per_second", found.rates->to_device},
                               {"to_host_bytes_per_second", found.rates->to_host},
                               {"both_bytes_per_second", found.rates->both}};
    }
  }
  nlohmann::json libraries = nlohmann::json::array();
  for (const FoundLibrary& library : survey.libraries) {
    libraries.push_back(
        {{"name", library.name}, {"path", library.path}, {"problem", library.problem}});
  }
  return {{"event", "gpus"},
          {"problem", survey.found.ok() ? "" : std::string(Message(survey.found))},
          {"driver_version", survey.driver_version},
          {"runtime_version", survey.runtime_version},
          {"gpus", gpus},
          {"servers_bytes", needs.servers},
          {"libraries", libraries}};
}

}  // namespace shoal::cli
