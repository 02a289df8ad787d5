// Lists the machine's RDMA devices for callers without libibverbs' types (`shoal doctor`).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

class VerbsApi;

// Whether a device, its driver and the kernel can register a dma-buf, the way to GPU memory that
// needs no vendor module.
enum class DmaBufSupport { kYes, kNo, kUnknown };

struct RdmaCensus {
  std::vector<DeviceDescription> devices;
  std::map<std::string, DmaBufSupport> dma_buf;  // by device
};

// Opens, queries and closes each device. The first overload uses the machine's own libibverbs.
RdmaCensus TakeRdmaCensus();
RdmaCensus TakeRdmaCensus(VerbsApi& api);

}  // namespace shoal::transport
