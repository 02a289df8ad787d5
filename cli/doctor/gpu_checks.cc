#include "cli/doctor/gpu_checks.h"

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

// Slower copies make a GPU wait for weights more than it computes: half of PCIe 4.0 x16.
constexpr double kSlowCopies = 12e9;
// Both ways at once over the slower way: 2 if they share nothing.
constexpr double kNoOverlap = 1.3;

std::string Version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string Rate(double bytes_per_second) {
  return fmt::format("{:.1f} GB/s", bytes_per_second / 1e9);
}

Check JudgeDriver(const GpuSurvey& survey) {
  Check check{.feature = "GPUs"};
  if (!survey.found.ok()) {
    check.health = Health::kMissing;
    check.detail = Message(survey.found);
    check.advice = survey.devices
                       ? "the kernel shows GPUs: give this process the driver (libcuda.so.1; in "
                         "a container --gpus all) and look at nvidia-smi; until then training "
                         "runs on the CPU"
                       : "training runs on the CPU";
    return check;
  }
  check.detail = fmt::format("{}, driver for CUDA {}, built with CUDA {}", survey.gpus.size(),
                             Version(survey.driver_version), Version(survey.runtime_version));
  const auto usable =
      std::ranges::find_if(survey.gpus, [](const FoundGpu& gpu) { return gpu.usable.ok(); });
  if (usable == survey.gpus.end()) {
    check.health = Health::kLimited;
    check.advice = "none can be computed on, so train.device auto takes the CPU";
    return check;
  }
  check.detail += fmt::format("; train.device auto takes cuda:{}", usable->gpu.index);
  if (survey.driver_version < survey.runtime_version) {
    check.health = Health::kLimited;
    check.advice = fmt::format(
        "the driver is older than CUDA {} that this was built with: it works within one major "
        "version, but update the driver",
        Version(survey.runtime_version));
  }
  return check;
}

Check JudgeGpu(const FoundGpu& found) {
  const gpu::GpuDescription& gpu = found.gpu;
  Check check{.feature = fmt::format("GPU {}", gpu.index)};
  check.detail =
      fmt::format("{}, {}, capability {}.{}, at {}", gpu.name, FormatBytes(gpu.memory_bytes),
                  gpu.capability / 10, gpu.capability % 10, gpu.pci_address);
  if (!gpu.pci_link.empty()) {
    check.detail += fmt::format(" ({})", gpu.pci_link);
  }
  if (!found.usable.ok()) {
    check.health = Health::kMissing;
    check.advice = Message(found.usable);
  }
  return check;
}

Check JudgeCopies(const FoundGpu& found) {
  Check check{.feature = fmt::format("copies of GPU {}", found.gpu.index)};
  if (!found.rates.has_value()) {
    check.health = Health::kLimited;
    check.detail = "not measured: " + found.rates_problem;
    check.advice = "look at what else uses the GPU (nvidia-smi)";
    return check;
  }
  const worker::CopyRates& rates = *found.rates;
  const double slower = std::min(rates.to_device, rates.to_host);
  check.detail = fmt::format("pinned memory: {} to it, {} from it, {} both at once",
                             Rate(rates.to_device), Rate(rates.to_host), Rate(rates.both));
  if (slower < kSlowCopies) {
    check.health = Health::kLimited;
    check.advice =
        "weights and gradients cross this bus each step: look whether the link runs at its full "
        "width and speed (nvidia-smi -q -d PCIE), and whether the process runs on the GPU's NUMA "
        "node; train.residency step and train.push step move least";
  } else if (rates.both < kNoOverlap * slower) {
    check.health = Health::kLimited;
    check.advice =
        "copies of the two directions do not overlap: say cluster.pipeline.pace.duplex false, and "
        "look whether other devices share the bus";
  }
  return check;
}

Check JudgeLibrary(const FoundLibrary& library) {
  Check check{.feature = library.name};
  if (library.path.empty()) {
    check.health = Health::kLimited;
    check.detail = library.problem;
    check.advice = fmt::format(
        "our own kernels serve instead; to have it used install it, or name its folder in "
        "SHOAL_CUDA_LIBRARIES");
  } else {
    check.detail = library.path;
  }
  return check;
}

constexpr const char* kTooLittleForServers =
    "use more GPUs, servers on other machines or a smaller model, or say service.memory: host";

Check JudgeServersOn(const FoundGpu& found, const plan::GpuTurn& gpu, const GpuNeeds& needs) {
  Check check{.feature = fmt::format("servers on GPU {}", found.gpu.index), .required = true};
  int64_t bytes = 0;
  std::vector<size_t> servers;
  for (size_t server = 0; server < needs.servers.size(); ++server) {
    if (gpu.Has(server)) {
      bytes += needs.servers[server];
      servers.push_back(server);
    }
  }
  check.detail = fmt::format("{} {} {} of its memory", servers.size() == 1 ? "server" : "servers",
                             fmt::join(servers, ", "),
                             (servers.size() == 1 ? "takes " : "take ") + FormatBytes(bytes));
  if (!found.free_bytes.has_value()) {
    check.health = Health::kLimited;
    check.advice = "what is free there cannot be told; look at what else uses it (nvidia-smi)";
    return check;
  }
  check.detail += fmt::format("; {} are free", FormatBytes(*found.free_bytes));
  if (bytes > *found.free_bytes) {
    check.health = Health::kMissing;
    check.advice = kTooLittleForServers;
  } else if (const int64_t workers = gpu.Share(needs.workers); workers > 0) {
    const int64_t left = std::max<int64_t>(0, found.budget_bytes - bytes);
    check.detail += fmt::format(", which leaves {} to {} {}", FormatBytes(left), workers,
                                workers == 1 ? "worker" : "workers");
    if (left == 0) {
      check.health = Health::kLimited;
      check.advice = std::string("nothing is left to workers: ") + kTooLittleForServers;
    }
  }
  return check;
}

// Servers on machines that are not known yet.
Check JudgeServersApart(const std::vector<const FoundGpu*>& usable, const GpuNeeds& needs) {
  Check check{.feature = "GPUs of servers"};
  const int64_t bytes = std::ranges::max(needs.servers);
  std::optional<int64_t> most;
  for (const FoundGpu* found : usable) {
    most = std::max(most, found->free_bytes);  // nullopt compares least
  }
  check.detail = fmt::format("a server takes up to {} of its GPU", FormatBytes(bytes));
  if (!most.has_value()) {
    check.detail += usable.empty() ? "; there is none here that it could use"
                                   : "; what is free of those here cannot be told";
    return check;
  }
  check.detail += fmt::format("; here {} are free", FormatBytes(*most));
  if (bytes > *most) {
    check.health = Health::kLimited;
    check.advice = std::string("no server fits on a GPU of this machine: ") + kTooLittleForServers;
  }
  return check;
}

std::vector<Check> JudgeServers(const GpuSurvey& survey, const GpuNeeds& needs) {
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
  std::vector<Check> checks;
  for (size_t place = 0; place < std::min(usable.size(), needs.servers.size()); ++place) {
    checks.push_back(
        JudgeServersOn(*usable[place], {.place = place, .gpus = usable.size()}, needs));
  }
  return checks;
}

}  // namespace

std::vector<Check> JudgeGpus(const GpuSurvey& survey, const GpuNeeds& needs) {
  std::vector<Check> checks = {JudgeDriver(survey)};
  for (const FoundGpu& gpu : survey.gpus) {
    checks.push_back(JudgeGpu(gpu));
    if (gpu.usable.ok()) {
      checks.push_back(JudgeCopies(gpu));
    }
  }
  std::ranges::move(JudgeServers(survey, needs), std::back_inserter(checks));
  for (const FoundLibrary& library : survey.libraries) {
    checks.push_back(JudgeLibrary(library));
  }
  return checks;
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
