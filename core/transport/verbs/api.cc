#include "core/transport/verbs/api.h"

#include <algorithm>
#include <cerrno>

namespace shoal::transport {
namespace {

// Holds the list of devices while it is read.
class DeviceList {
 public:
  DeviceList() : devices_(ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_ != nullptr) {
      ibv_free_device_list(devices_);
    }
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ibv_device** begin() const { return devices_; }
  ibv_device** end() const { return devices_ + (devices_ == nullptr ? 0 : count_); }

 private:
  int count_ = 0;
  ibv_device** devices_ = nullptr;
};

// Reads entry by entry, for kernels and providers that cannot query the whole table.
std::vector<ibv_gid_entry> GidsOneByOne(ibv_context* context, int ports) {
  std::vector<ibv_gid_entry> gids;
  for (int port = 1; port <= ports; ++port) {
    ibv_port_attr attributes = {};
    if (ibv_query_port(context, static_cast<uint8_t>(port), &attributes) != 0) {
      continue;
    }
    for (int index = 0; index < attributes.gid_tbl_len; ++index) {
      ibv_gid_entry entry = {};
      if (ibv_query_gid_ex(context, static_cast<uint32_t>(port), static_cast<uint32_t>(index),
                           &entry, 0) == 0) {
        gids.push_back(entry);
      }
    }
  }
  return gids;
}

class LibIbverbs final : public VerbsApi {
 public:
  std::vector<std::string> DeviceNames() override {
    errno = 0;
    const DeviceList list;
    const int error = errno;
    std::vector<std::string> names;
    for (ibv_device* device : list) {
      names.emplace_back(ibv_get_device_name(device));
    }
    errno = error;  // restored for the caller: allocations may have changed it
    return names;
  }

  DeviceLocation Locate(const std::string& device) override { return LocateRdmaDevice(device); }

  ibv_context* OpenDevice(const std::string& device) override {
    const DeviceList list;
    for (ibv_device* candidate : list) {
      if (device == ibv_get_device_name(candidate)) {
        return ibv_open_device(candidate);
      }
    }
    errno = ENODEV;
    return nullptr;
  }
  int CloseDevice(ibv_context* context) override { return ibv_close_device(context); }
  int QueryDevice(ibv_context* context, ibv_device_attr* attributes) override {
    return ibv_query_device(context, attributes);
  }
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attributes) override {
    return ibv_query_port(context, port, attributes);
  }

  std::vector<ibv_gid_entry> QueryGids(ibv_context* context) override {
    ibv_device_attr device = {};
    if (ibv_query_device(context, &device) != 0) {
      return {};
    }
    size_t entries = 0;
    for (int port = 1; port <= device.phys_port_cnt; ++port) {
      ibv_port_attr attributes = {};
      if (ibv_query_port(context, static_cast<uint8_t>(port), &attributes) == 0) {
        entries += static_cast<size_t>(std::max(0, attributes.gid_tbl_len));
      }
    }
    std::vector<ibv_gid_entry> gids(entries);
    const ssize_t found =
        entries == 0 ? 0 : ibv_query_gid_table(context, gids.data(), gids.size(), 0);
    if (found < 0) {
      return GidsOneByOne(context, device.phys_port_cnt);
    }
    gids.resize(static_cast<size_t>(found));
    return gids;
  }

  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    return ibv_get_async_event(context, event) == 0 ? 0 : errno;
  }
  void AckAsyncEvent(ibv_async_event* event) override { ibv_ack_async_event(event); }

  ibv_pd* AllocPd(ibv_context* context) override { return ibv_alloc_pd(context); }
  int DeallocPd(ibv_pd* pd) override { return ibv_dealloc_pd(pd); }
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return ibv_reg_mr(pd, address, bytes, access);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                      int access) override {
    return ibv_reg_dmabuf_mr(pd, offset, bytes, iova, fd, access);
  }
  int DeregMr(ibv_mr* mr) override { return ibv_dereg_mr(mr); }
  ibv_mw* AllocMw(ibv_pd* pd, ibv_mw_type type) override { return ibv_alloc_mw(pd, type); }
  int DeallocMw(ibv_mw* mw) override { return ibv_dealloc_mw(mw); }

  ibv_comp_channel* CreateCompChannel(ibv_context* context) override {
    return ibv_create_comp_channel(context);
  }
  int DestroyCompChannel(ibv_comp_channel* channel) override {
    return ibv_destroy_comp_channel(channel);
  }
  ibv_cq* CreateCq(ibv_context* context, int entries, void* user,
                   ibv_comp_channel* channel) override {
    return ibv_create_cq(context, entries, user, channel, 0);
  }
  int DestroyCq(ibv_cq* cq) override { return ibv_destroy_cq(cq); }
  int ReqNotifyCq(ibv_cq* cq) override { return ibv_req_notify_cq(cq, 0); }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    void* user = nullptr;
    return ibv_get_cq_event(channel, cq, &user) == 0 ? 0 : errno;
  }
  void AckCqEvents(ibv_cq* cq, unsigned int count) override { ibv_ack_cq_events(cq, count); }
  int PollCq(ibv_cq* cq, int entries, ibv_wc* completions) override {
    return ibv_poll_cq(cq, entries, completions);
  }

  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) override {
    return ibv_create_qp(pd, attributes);
  }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) override {
    return ibv_modify_qp(qp, attributes, mask);
  }
  int DestroyQp(ibv_qp* qp) override { return ibv_destroy_qp(qp); }
  int PostSend(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad) override {
    return ibv_post_send(qp, requests, bad);
  }
  int PostRecv(ibv_qp* qp, ibv_recv_wr* requests, ibv_recv_wr** bad) override {
    return ibv_post_recv(qp, requests, bad);
  }
};

}  // namespace

std::shared_ptr<VerbsApi> SystemVerbs() {
  static const auto api = std::make_shared<LibIbverbs>();
  return api;
}

}  // namespace shoal::transport
