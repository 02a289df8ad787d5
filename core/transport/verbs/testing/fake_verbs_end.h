// One end of a queue pair with all that it needs, for tests of the fake fabric itself.
#pragma once

#include <poll.h>

#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/transport/verbs/testing/fake_verbs.h"

namespace shoal::transport {

constexpr int kEverything =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;

// What a test posts; the rest of a work request follows from it.
struct Work {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  uint32_t bytes = 0;
  size_t local = 0;  // into the poster's memory
  uint64_t remote = 0;
  uint32_t key = 0;
  unsigned int flags = IBV_SEND_SIGNALED;
  uint32_t immediate = 0;
  std::optional<uint32_t> local_key;
};

class End {
 public:
  struct Options {
    uint32_t sends = 16;
    uint32_t receives = 16;
    int completions = 64;
    uint32_t inline_bytes = 64;
    size_t bytes = 4096;
    int access = kEverything;
    unsigned int queue_pair_access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    uint8_t retries = 6;
    uint8_t not_ready_retries = 3;
    uint8_t reads = 4;
    ibv_mtu mtu = IBV_MTU_1024;
  };

  End(std::shared_ptr<VerbsApi> host, const std::string& device) : End(host, device, Options()) {}
  End(std::shared_ptr<VerbsApi> host, const std::string& device, const Options& options)
      : api(std::move(host)), memory(options.bytes), options_(options) {
    context = api->OpenDevice(device);
    SHOAL_CHECK(context != nullptr);
    pd = api->AllocPd(context);
    channel = api->CreateCompChannel(context);
    cq = api->CreateCq(context, options.completions, nullptr, channel);
    mr = api->RegMr(pd, memory.data(), memory.size(), options.access);
    SHOAL_CHECK(pd != nullptr && channel != nullptr && cq != nullptr && mr != nullptr);
    MakeQueuePair();
  }
  ~End() {
    DestroyQueuePair();
    if (mr != nullptr) {
      SHOAL_CHECK(api->DeregMr(mr) == 0);
    }
    SHOAL_CHECK(api->DestroyCq(cq) == 0);
    SHOAL_CHECK(api->DestroyCompChannel(channel) == 0);
    SHOAL_CHECK(api->DeallocPd(pd) == 0);
    SHOAL_CHECK(api->CloseDevice(context) == 0);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void MakeQueuePair() {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = cq;
    attributes.recv_cq = cq;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {options_.sends, options_.receives, 2, 2, options_.inline_bytes};
    qp = api->CreateQp(pd, &attributes);
    SHOAL_CHECK(qp != nullptr);
  }
  void DestroyQueuePair() {
    if (qp != nullptr) {
      SHOAL_CHECK(api->DestroyQp(std::exchange(qp, nullptr)) == 0);
    }
  }

  int Initialize() {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = options_.queue_pair_access;
    return api->ModifyQp(qp, &attributes,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }
  // The last GID of a device of the tests is its routable one.
  ibv_gid_entry gid() const { return api->QueryGids(context).back(); }
  ibv_qp_attr Path(uint32_t number, const ibv_gid_entry& target) const {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = options_.mtu;
    attributes.dest_qp_num = number;
    attributes.rq_psn = 77;
    attributes.max_dest_rd_atomic = options_.reads;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.dgid = target.gid;
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid().gid_index);
    return attributes;
  }
  static constexpr int kToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                    IBV_QP_MIN_RNR_TIMER;
  static constexpr int kToSend = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                 IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  ibv_qp_attr Sending() const {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = 14;
    attributes.retry_cnt = options_.retries;
    attributes.rnr_retry = options_.not_ready_retries;
    attributes.sq_psn = 77;
    attributes.max_rd_atomic = options_.reads;
    return attributes;
  }
  // This end's half of a connection to another's queue pair.
  void ConnectTo(const End& peer) {
    SHOAL_CHECK(Initialize() == 0);
    ibv_qp_attr path = Path(peer.qp->qp_num, peer.gid());
    SHOAL_CHECK(api->ModifyQp(qp, &path, kToReceive) == 0);
    ibv_qp_attr sending = Sending();
    SHOAL_CHECK(api->ModifyQp(qp, &sending, kToSend) == 0);
  }
  int SetState(ibv_qp_state state) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = state;
    return api->ModifyQp(qp, &attributes, IBV_QP_STATE);
  }

  // Requests for PostSend, which hold their pieces.
  struct Batch {
    std::vector<ibv_send_wr> requests;
    std::vector<ibv_sge> pieces;
  };
  Batch Make(const std::vector<Work>& works) const {
    Batch batch{std::vector<ibv_send_wr>(works.size()), std::vector<ibv_sge>(works.size())};
    for (size_t i = 0; i < works.size(); ++i) {
      const Work& work = works[i];
      batch.pieces[i] = {Address(work.local), work.bytes, work.local_key.value_or(mr->lkey)};
      ibv_send_wr& request = batch.requests[i];
      request.wr_id = work.id;
      request.next = i + 1 < works.size() ? &batch.requests[i + 1] : nullptr;
      request.sg_list = &batch.pieces[i];
      request.num_sge = work.bytes > 0 ? 1 : 0;
      request.opcode = work.opcode;
      request.send_flags = work.flags;
      request.imm_data = work.immediate;
      request.wr.rdma.remote_addr = work.remote;
      request.wr.rdma.rkey = work.key;
    }
    return batch;
  }
  int Post(const Work& work) {
    Batch batch = Make({work});
    ibv_send_wr* bad = nullptr;
    return api->PostSend(qp, batch.requests.data(), &bad);
  }
  int PostBind(uint64_t id, ibv_mw* window, uint32_t key, size_t offset, size_t bytes,
               unsigned int access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE) {
    ibv_send_wr request = {};
    request.wr_id = id;
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = IBV_SEND_SIGNALED;
    request.bind_mw = {window, key, {mr, Address(offset), bytes, access}};
    ibv_send_wr* bad = nullptr;
    return api->PostSend(qp, &request, &bad);
  }
  int PostReceive(uint64_t id, size_t local, uint32_t bytes) {
    ibv_sge piece = {Address(local), bytes, mr->lkey};
    ibv_recv_wr request = {id, nullptr, &piece, 1};
    ibv_recv_wr* bad = nullptr;
    return api->PostRecv(qp, &request, &bad);
  }
  // All completions that there are.
  std::vector<ibv_wc> Poll() {
    std::vector<ibv_wc> polled(1024);
    const int count = api->PollCq(cq, 1024, polled.data());
    SHOAL_CHECK(count >= 0);
    polled.resize(static_cast<size_t>(count));
    return polled;
  }
  uint64_t Address(size_t offset) const {
    return reinterpret_cast<uint64_t>(memory.data()) + offset;
  }
  std::string Text(size_t offset, size_t bytes) const {
    return {reinterpret_cast<const char*>(memory.data()) + offset, bytes};
  }
  void Put(size_t offset, const std::string& text) {
    std::memcpy(memory.data() + offset, text.data(), text.size());
  }

  const std::shared_ptr<VerbsApi> api;
  std::vector<std::byte> memory;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;

 private:
  const Options options_;
};

// Two hosts, an end on each, connected; the test takes the steps.
struct Link {
  explicit Link(uint64_t seed = 1) : Link(seed, End::Options(), End::Options()) {}
  Link(uint64_t seed, const End::Options& left, const End::Options& right, bool soft_roce = false,
       uint32_t max_message_bytes = 1u << 30)
      : fabric({.seed = seed, .manual = true}),
        a(fabric.AddHost({Device("left", "10.0.0.1", soft_roce, max_message_bytes)}), "left", left),
        b(fabric.AddHost({Device("right", "10.0.0.2", soft_roce, max_message_bytes)}), "right",
          right) {
    a.ConnectTo(b);
    b.ConnectTo(a);
  }
  static FakeDevice Device(const std::string& name, const std::string& address, bool soft_roce,
                           uint32_t max_message_bytes) {
    FakeDevice device =
        soft_roce ? FakeDevice::SoftRoce(name, address) : FakeDevice::Ethernet(name, address);
    device.ports[0].max_message_bytes = max_message_bytes;
    return device;
  }
  Work Write(uint64_t id, size_t from, size_t to, uint32_t bytes) const {
    return {id, IBV_WR_RDMA_WRITE, bytes, from, b.Address(to), b.mr->rkey};
  }
  Work Read(uint64_t id, size_t into, size_t from, uint32_t bytes) const {
    return {id, IBV_WR_RDMA_READ, bytes, into, b.Address(from), b.mr->rkey};
  }

  FakeFabric fabric;
  End a;
  End b;
};

inline bool Readable(int fd) {
  pollfd polled = {fd, POLLIN, 0};
  return poll(&polled, 1, 0) == 1;
}

// "id:STATUS" for each.
inline std::vector<std::string> Outcomes(const std::vector<ibv_wc>& completions) {
  std::vector<std::string> outcomes;
  for (const ibv_wc& completion : completions) {
    outcomes.push_back(std::to_string(completion.wr_id) + ":" +
                       ibv_wc_status_str(completion.status));
  }
  return outcomes;
}

}  // namespace shoal::transport
