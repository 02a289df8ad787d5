#include "cli/doctor/rdma_survey.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "cli/run/machine.h"
#include "core/base/host/host_facts.h"
#include "fmt/format.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

int64_t Number(const std::string& path) {
  return std::strtoll(FirstLine(path).c_str(), nullptr, 10);
}

RdmaPort ExaminePort(const std::string& folder, const transport::PortDescription& port) {
  RdmaPort facts;
  for (const transport::GidDescription& gid : port.gids) {
    const std::string interface =
        FirstLine(fmt::format("{}/gid_attrs/ndevs/{}", folder, gid.index));
    if (!interface.empty()) {
      facts.interfaces[gid.index] = interface;
    }
  }
  for (const std::string& counter : EntriesOf(folder + "/hw_counters")) {
    facts.counters[counter] = Number(folder + "/hw_counters/" + counter);
  }
  return facts;
}

}  // namespace

transport::DmaBufSupport RdmaSurvey::DmaBufOf(const std::string& device) const {
  const auto known = census.dma_buf.find(device);
  return known == census.dma_buf.end() ? transport::DmaBufSupport::kUnknown : known->second;
}

std::string PortName(const std::string& device, int port) {
  return fmt::format("{}:{}", device, port);
}

RdmaSurvey ExamineRdma(const std::string& root, transport::RdmaCensus census) {
  RdmaSurvey survey;
  survey.census = std::move(census);
  survey.kernel_devices = EntriesOf(root + "/sys/class/infiniband");
  survey.device_files = !EntriesOf(root + "/dev/infiniband").empty();
  for (const transport::DeviceDescription& device : survey.census.devices) {
    for (const transport::PortDescription& port : device.ports) {
      RdmaPort& facts = survey.ports[PortName(device.name, port.port)];
      facts = ExaminePort(
          fmt::format("{}/sys/class/infiniband/{}/ports/{}", root, device.name, port.port), port);
      for (const auto& [index, interface] : facts.interfaces) {
        survey.interface_mtus[interface] =
            Number(fmt::format("{}/sys/class/net/{}/mtu", root, interface));
      }
    }
  }
  survey.locked = transport::ReadLockedMemory(root);
  survey.peer_memory = fs::exists(root + "/sys/module/nvidia_peermem");
  survey.packet_filter =
      fs::exists(root + "/sys/module/nf_tables") || fs::exists(root + "/sys/module/ip_tables");
  return survey;
}

}  // namespace shoal::cli
