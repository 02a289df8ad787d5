#include "core/transport/verbs/rdma_census.h"

#include "core/transport/verbs/api.h"
#include "core/transport/verbs/device_probe.h"
#include "core/transport/verbs/gpu_registration.h"

namespace shoal::transport {
namespace {

DmaBufSupport ProbeDevice(VerbsApi& api, const std::string& name) {
  DmaBufSupport support = DmaBufSupport::kUnknown;
  ibv_context* context = api.OpenDevice(name);
  if (context == nullptr) {
    return support;
  }
  if (ibv_pd* pd = api.AllocPd(context); pd != nullptr) {
    support = ProbeDmaBuf(api, pd);
    api.DeallocPd(pd);
  }
  api.CloseDevice(context);
  return support;
}

}  // namespace

RdmaCensus TakeRdmaCensus() { return TakeRdmaCensus(*SystemVerbs()); }

RdmaCensus TakeRdmaCensus(VerbsApi& api) {
  RdmaCensus census = {.devices = DescribeDevices(api), .dma_buf = {}};
  for (const DeviceDescription& device : census.devices) {
    census.dma_buf[device.name] = ProbeDevice(api, device.name);
  }
  return census;
}

}  // namespace shoal::transport
