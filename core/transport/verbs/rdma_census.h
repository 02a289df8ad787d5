// What RDMA devices this machine has, for those who only want to know (`shoal doctor`): without
// libibverbs' types.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

class VerbsApi;

// Whether a device, its driver and the kernel can register a dma-buf, the way to GPU memory without
// modules of the GPU's vendor.
enum class DmaBufSupport { kYes, kNo, kUnknown };

struct RdmaCensus {
  std::vector<DeviceDescription> devices;
  std::map<std::string, DmaBufSupport> dma_buf;  // by device
};

// Opens each device, asks and closes it again. The first is for the machine's own libibverbs.
RdmaCensus TakeRdmaCensus();
RdmaCensus TakeRdmaCensus(VerbsApi& api);

}  // namespace shoal::transport
