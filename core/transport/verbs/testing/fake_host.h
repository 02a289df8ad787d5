// A host of the fake fabric as its processes see it: VerbsApi over the engine.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/transport/verbs/testing/fake_engine.h"

namespace shoal::transport {

class FakeHost final : public VerbsApi {
 public:
  FakeHost(std::shared_ptr<FakeEngine> engine, std::vector<FakeDeviceState*> devices)
      : engine_(std::move(engine)), devices_(std::move(devices)) {}

  std::vector<std::string> DeviceNames() override;
  DeviceLocation Locate(const std::string& device) override;
  ibv_context* OpenDevice(const std::string& device) override;
  int CloseDevice(ibv_context* context) override;
  int QueryDevice(ibv_context* context, ibv_device_attr* attributes) override;
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override;
  std::vector<ibv_gid_entry> QueryGids(ibv_context* context) override;
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override;
  void AckAsyncEvent(ibv_async_event* event) override;

  ibv_pd* AllocPd(ibv_context* context) override;
  int DeallocPd(ibv_pd* pd) override;
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override;
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                      int access) override;
  int DeregMr(ibv_mr* mr) override;
  ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) override;
  int DeallocMw(ibv_mw* mw) override;

  ibv_comp_channel* CreateCompChannel(ibv_context* context) override;
  int DestroyCompChannel(ibv_comp_channel* channel) override;
  ibv_cq* CreateCq(ibv_context* context, int entries, void* user,
                   ibv_comp_channel* channel) override;
  int DestroyCq(ibv_cq* cq) override;
  int ReqNotifyCq(ibv_cq* cq) override;
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override;
  void AckCqEvents(ibv_cq* cq, unsigned int count) override;
  int PollCq(ibv_cq* cq, int entries, ibv_wc* completions) override;

  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override;
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override;
  int DestroyQp(ibv_qp* qp) override;
  int PostSend(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad) override;
  int PostRecv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad) override;

 private:
  // Returns an errno value if an object of the context may not be made now, because of a removal or
  // a fault.
  int MayMake(ibv_context* context, FakeCall call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_->mutex);
  int Prepare(FakeQp& qp, const ibv_qp_attr& attributes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_->mutex);
  int FindPath(FakeQp& qp, const ibv_qp_attr& attributes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_->mutex);
  int PostOne(FakeQp& qp, const ibv_send_wr& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine_->mutex);

  const std::shared_ptr<FakeEngine> engine_;
  const std::vector<FakeDeviceState*> devices_;
};

}  // namespace shoal::transport
