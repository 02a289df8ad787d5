// The seam over libibverbs: every call of the verbs transport goes through it, so that a test can
// substitute its own fabric (core/transport/verbs/testing/fake_verbs.h) and drive errors, partial
// batches and reordered completions from a seed.
//
// Functions mean what those of the same name in libibverbs mean and fail as they do: pointers are
// null, with errno set; ints are 0 or an errno value (PollCq: the number of completions, or
// negative). Objects are libibverbs' own; an implementation may return structs derived from them.
// Thread-safe as libibverbs is.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/transport/verbs/topology/topology.h"

namespace shoal::transport {

class VerbsApi {
 public:
  virtual ~VerbsApi() = default;

  // Sets errno if the list is empty, since the reason may be of interest.
  virtual std::vector<std::string> DeviceNames() = 0;
  virtual DeviceLocation Locate(const std::string& device) = 0;
  virtual ibv_context* OpenDevice(const std::string& device) = 0;
  virtual int CloseDevice(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* attributes) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) = 0;
  // All GIDs in use, of all ports.
  virtual std::vector<ibv_gid_entry> QueryGids(ibv_context* context) = 0;
  // Device events (port down, device removed) arrive at context->async_fd.
  virtual int GetAsyncEvent(ibv_context* context, ibv_async_event* event) = 0;
  virtual void AckAsyncEvent(ibv_async_event* event) = 0;

  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) = 0;
  virtual ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                              int access) = 0;
  virtual int DeregMr(ibv_mr* mr) = 0;
  virtual ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) = 0;
  virtual int DeallocMw(ibv_mw* mw) = 0;

  virtual ibv_comp_channel* CreateCompChannel(ibv_context* context) = 0;
  virtual int DestroyCompChannel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* CreateCq(ibv_context* context, int entries, void* user,
                           ibv_comp_channel* channel) = 0;
  virtual int DestroyCq(ibv_cq* cq) = 0;
  virtual int ReqNotifyCq(ibv_cq* cq) = 0;  // for any completion
  virtual int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;
  virtual void AckCqEvents(ibv_cq* cq, unsigned int count) = 0;
  virtual int PollCq(ibv_cq* cq, int entries, ibv_wc* completions) = 0;

  virtual ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) = 0;
  virtual int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = 0;
  virtual int DestroyQp(ibv_qp* qp) = 0;
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad) = 0;
  virtual int PostRecv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad) = 0;
};

// Returns the machine's own libibverbs.
std::shared_ptr<VerbsApi> SystemVerbs();

}  // namespace shoal::transport
