#include "core/transport/verbs/device_probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "core/base/status.h"

namespace shoal::transport {
namespace {

int MtuBytes(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << static_cast<int>(mtu) : 0;
}

// Speed of one lane, by the bit that the specification assigns to it.
int64_t LaneBitsPerSecond(uint8_t speed) {
  struct Speed {
    uint8_t code;
    int64_t megabits;
  };
  constexpr std::array<Speed, 8> kSpeeds = {{{1, 2500},         // SDR
                                             {2, 5000},         // DDR
                                             {4, 10'000},       // QDR
                                             {8, 10'000},       // FDR10
                                             {16, 14'000},      // FDR
                                             {32, 25'000},      // EDR
                                             {64, 50'000},      // HDR
                                             {128, 100'000}}};  // NDR
  for (const Speed& it : kSpeeds) {
    if (it.code == speed) {
      return it.megabits * 1'000'000;
    }
  }
  return 0;
}

int Lanes(uint8_t width) {
  switch (width) {
    case 1:
      return 1;
    case 2:
      return 4;
    case 4:
      return 8;
    case 8:
      return 12;
    case 16:
      return 2;
    default:
      return 0;
  }
}

GidType TypeOf(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return GidType::kRoceV1;
    case IBV_GID_TYPE_ROCE_V2:
      return GidType::kRoceV2;
    default:
      return GidType::kInfiniBand;
  }
}

std::vector<GidDescription> GidsOf(const std::vector<ibv_gid_entry>& table, int port) {
  std::vector<GidDescription> gids;
  for (const ibv_gid_entry& entry : table) {
    if (entry.port_num == static_cast<uint32_t>(port)) {
      GidDescription& gid = gids.emplace_back();
      gid.index = static_cast<int>(entry.gid_index);
      gid.type = TypeOf(entry.gid_type);
      std::memcpy(gid.gid.data(), entry.gid.raw, gid.gid.size());
    }
  }
  return gids;
}

PortDescription DescribePort(int number, const ibv_port_attr& attributes,
                             const std::vector<ibv_gid_entry>& gids) {
  PortDescription port;
  port.port = number;
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.link_layer = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::kEthernet
                                                                     : LinkLayer::kInfiniBand;
  port.lid = attributes.lid;
  port.mtu_bytes = MtuBytes(attributes.active_mtu);
  port.bits_per_second =
      LaneBitsPerSecond(attributes.active_speed) * Lanes(attributes.active_width);
  port.max_message_bytes = attributes.max_msg_sz;
  port.gids = GidsOf(gids, number);
  return port;
}

void Describe(const ibv_device_attr& attributes, DeviceDescription& device) {
  device.max_work_requests = attributes.max_qp_wr;
  device.max_completions = attributes.max_cqe;
  device.max_queue_pairs = attributes.max_qp;
  device.max_reads_as_target = attributes.max_qp_rd_atom;
  device.max_reads_as_source = attributes.max_qp_init_rd_atom;
  device.max_region_bytes = static_cast<int64_t>(std::min<uint64_t>(
      attributes.max_mr_size, static_cast<uint64_t>(std::numeric_limits<int64_t>::max())));
  device.windows = attributes.max_mw > 0 &&
                   (attributes.device_cap_flags &
                    (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
}

std::string WhyNotOpened(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return "it may not be opened; give this user /dev/infiniband/uverbs* (in a container: the "
             "RDMA device plugin, or --device /dev/infiniband)";
    case ENODEV:
    case ENOENT:
      return "it is known but has no /dev/infiniband/uverbs*; load ib_uverbs, and in a container "
             "pass the device in";
    default:
      return fmt::format("it cannot be opened: {}", std::strerror(error));
  }
}

void Ask(VerbsApi& api, ibv_context* context, DeviceDescription& device) {
  if (context->device->transport_type != IBV_TRANSPORT_IB) {
    device.problem =
        "it is neither InfiniBand nor RoCE (iWARP and EFA lack writes with immediate data or "
        "reliable connections)";
    return;
  }
  ibv_device_attr attributes = {};
  if (const int error = api.QueryDevice(context, &attributes); error != 0) {
    device.problem = fmt::format("it does not answer: {}", std::strerror(error));
    return;
  }
  Describe(attributes, device);
  const std::vector<ibv_gid_entry> gids = api.QueryGids(context);
  for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
    ibv_port_attr port = {};
    if (const int error = api.QueryPort(context, static_cast<uint8_t>(number), &port); error != 0) {
      device.problem = fmt::format("port {} does not answer: {}", number, std::strerror(error));
      continue;
    }
    device.ports.push_back(DescribePort(number, port, gids));
  }
}

}  // namespace

std::vector<DeviceDescription> DescribeDevices(VerbsApi& api) {
  std::vector<DeviceDescription> devices;
  for (const std::string& name : api.DeviceNames()) {
    DeviceDescription& device = devices.emplace_back();
    device.name = name;
    const DeviceLocation location = api.Locate(name);
    device.numa_node = location.numa_node;
    device.pci_path = location.pci_path;
    errno = 0;
    ibv_context* context = api.OpenDevice(name);
    if (context == nullptr) {
      device.problem = WhyNotOpened(errno);
      continue;
    }
    Ask(api, context, device);
    api.CloseDevice(context);
  }
  return devices;
}

}  // namespace shoal::transport
