// service.rdma: what the verbs transport is told.
#include "core/job/job_key_builder.h"

namespace shoal::plan {
namespace {

// "mlx5_0" or, for one of its ports, "mlx5_0:2".
bool IsDevice(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const std::string port = colon == std::string::npos ? "1" : text.substr(colon + 1);
  const auto only = [](const std::string& part, std::string_view characters) {
    return !part.empty() && part.size() <= 63 &&
           part.find_first_not_of(characters) == std::string::npos;
  };
  return only(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") &&
         port.size() <= 3 && only(port, "0123456789") && port.front() != '0';
}

absl::Status ParseDevices(const YAML::Node& node, Job& job) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<std::string> devices, ParseTextList(node));
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!IsDevice(devices[i])) {
      return InvalidArgument("has '{}', expected device names like mlx5_0, or mlx5_0:2 for a port",
                             devices[i].substr(0, 60));
    }
    if (std::find(devices.begin(), devices.begin() + static_cast<ptrdiff_t>(i), devices[i]) !=
        devices.begin() + static_cast<ptrdiff_t>(i)) {
      return InvalidArgument("has '{}' twice", devices[i]);
    }
  }
  job.service.rdma.devices = std::move(devices);
  return absl::OkStatus();
}

std::string PrintDevices(const Job& job) {
  std::string text;
  for (const std::string& device : job.service.rdma.devices) {
    text += (text.empty() ? "" : ", ") + QuoteYaml(device);
  }
  return "[" + text + "]";
}

}  // namespace

void AddRdmaKeys(TableBuilder& table) {
  table
      .Add({.key = {.path = "service.rdma.devices",
                    .type = "list of device names",
                    .help = "What verbs uses, `mlx5_0` or `mlx5_0:2` for a port, in this order; "
                            "empty: all that are fit, those of the process's NUMA node first, "
                            "then faster ones. `--rdma-device` of a server or worker overrides it "
                            "on its machine."},
            .parse = ParseDevices,
            .print = PrintDevices})
      .Integer(
          "service.rdma.gid_index", [](Job & j) -> auto& { return j.service.rdma.gid_index; },
          {-1, 255},
          "Index of the GID that peers address on Ethernet; -1: chosen, as `shoal doctor` shows. "
          "`--rdma-gid-index` overrides it.")
      .Choice<int64_t>(
          "service.rdma.mtu", [](Job & j) -> auto& { return j.service.rdma.mtu_bytes; },
          {{"auto", 0}, {"256", 256}, {"512", 512}, {"1024", 1024}, {"2048", 2048}, {"4096", 4096}},
          "Bytes of the largest packet; auto: the most that both ports have active.")
      .Integer(
          "service.rdma.max_rails", [](Job & j) -> auto& { return j.service.rdma.max_rails; },
          {1, 16}, "Devices and ports that one connection uses at once.")
      .Integer(
          "service.rdma.traffic_class",
          [](Job & j) -> auto& { return j.service.rdma.traffic_class; }, {0, 255},
          "Traffic class of RoCE packets, DSCP times 4: what switches tell the lossless class by.")
      .Integer(
          "service.rdma.service_level",
          [](Job & j) -> auto& { return j.service.rdma.service_level; }, {0, 15},
          "Service level on InfiniBand.");
}

}  // namespace shoal::plan
