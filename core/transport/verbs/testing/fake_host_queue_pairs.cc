// Queue pairs: their states, and posting to them.
#include <algorithm>
#include <cerrno>

#include "core/base/check.h"
#include "core/transport/verbs/testing/fake_host.h"
#include "core/transport/verbs/topology/gid_kind.h"

namespace shoal::transport {
namespace {

constexpr absl::Duration kAcknowledgePatience = absl::Seconds(10);
constexpr uint32_t kMostPieces = 4;

// What a change of state must name, and what it may.
struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
};

bool IsAllowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  const int named = mask & ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
    return named == 0;
  }
  return std::ranges::any_of(kTransitions, [&](const Transition& transition) {
    return transition.from == from && transition.to == to &&
           (named & transition.required) == transition.required &&
           (named & ~(transition.required | transition.optional)) == 0;
  });
}

bool IsInlineable(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool IsKnown(ibv_wr_opcode opcode) {
  return IsInlineable(opcode) || opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_BIND_MW ||
         opcode == IBV_WR_LOCAL_INV;
}

}  // namespace

ibv_qp* FakeHost::CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  absl::MutexLock lock(&engine_->mutex);
  FakeDeviceState& device = *static_cast<FakeContext*>(pd->context)->state;
  const ibv_qp_cap& capacity = attributes->cap;
  const auto most = static_cast<uint32_t>(device.description.max_work_requests);
  int error = MayMake(pd->context, FakeCall::kCreateQp);
  if (error == 0 && attributes->qp_type != IBV_QPT_RC) {
    error = EOPNOTSUPP;
  }
  if (error == 0 && (capacity.max_send_wr > most || capacity.max_recv_wr > most ||
                     capacity.max_send_sge > kMostPieces || capacity.max_recv_sge > kMostPieces ||
                     capacity.max_inline_data > device.description.max_inline_bytes)) {
    error = EINVAL;
  }
  if (error == 0 && engine_->live.queue_pairs >= device.description.max_queue_pairs) {
    error = ENOMEM;
  }
  if (error != 0) {
    errno = error;
    return nullptr;
  }
  auto* qp = new FakeQp();
  qp->context = pd->context;
  qp->pd = pd;
  qp->device = &device;
  qp->send_cq = attributes->send_cq;
  qp->recv_cq = attributes->recv_cq;
  qp->qp_context = attributes->qp_context;
  qp->qp_type = IBV_QPT_RC;
  qp->capacity = capacity;
  qp->signal_all = attributes->sq_sig_all != 0;
  qp->blocked_until = absl::InfinitePast();
  engine_->AddQueuePair(qp);
  ++static_cast<FakePd*>(pd)->users;
  ++static_cast<FakeCq*>(qp->send_cq)->queue_pairs;
  ++static_cast<FakeCq*>(qp->recv_cq)->queue_pairs;
  ++engine_->live.queue_pairs;
  return qp;
}

int FakeHost::DestroyQp(ibv_qp* qp) {
  absl::MutexLock lock(&engine_->mutex);
  auto* gone = static_cast<FakeQp*>(qp);
  engine_->RemoveQueuePair(gone);
  const auto acknowledged = [gone] { return gone->events_taken == gone->events_acknowledged; };
  SHOAL_CHECK(
      engine_->mutex.AwaitWithTimeout(absl::Condition(&acknowledged), kAcknowledgePatience));
  --static_cast<FakePd*>(gone->pd)->users;
  --static_cast<FakeCq*>(gone->send_cq)->queue_pairs;
  --static_cast<FakeCq*>(gone->recv_cq)->queue_pairs;
  delete gone;
  --engine_->live.queue_pairs;
  return 0;
}

int FakeHost::Prepare(FakeQp& qp, const ibv_qp_attr& attributes) {
  if (attributes.port_num < 1 || attributes.port_num > qp.device->description.ports.size()) {
    return EINVAL;
  }
  qp.local = {qp.device, attributes.port_num};
  qp.attributes.port_num = attributes.port_num;
  return 0;
}

int FakeHost::FindPath(FakeQp& qp, const ibv_qp_attr& attributes) {
  const ibv_ah_attr& path = attributes.ah_attr;
  const FakePort& port = qp.local.get();
  if (attributes.path_mtu > port.mtu || attributes.path_mtu < IBV_MTU_256 ||
      path.port_num != qp.local.port ||
      attributes.max_dest_rd_atomic > qp.device->description.max_reads) {
    return EINVAL;
  }
  if (port.link_layer == LinkLayer::kEthernet) {
    const auto source = std::ranges::find_if(
        port.gids, [&](const GidDescription& gid) { return gid.index == path.grh.sgid_index; });
    if (path.is_global == 0 || source == port.gids.end()) {
      return EINVAL;
    }
    Gid target;
    std::copy(std::begin(path.grh.dgid.raw), std::end(path.grh.dgid.raw), target.begin());
    // Routes lead neither from one family to the other nor from loopback or link-local addresses to
    // others.
    const auto bound = [](GidKind kind) {
      return kind == GidKind::kLoopback || kind == GidKind::kLinkLocal;
    };
    const GidKind from = KindOf(source->gid);
    const GidKind to = KindOf(target);
    if (IsIpv4(source->gid) != IsIpv4(target) || ((bound(from) || bound(to)) && from != to)) {
      return ENETUNREACH;
    }
  }
  const std::optional<FakePortRef> remote = engine_->Route(qp.local, path);
  if (!remote.has_value()) {
    return ETIMEDOUT;
  }
  qp.remote = *remote;
  qp.attributes.path_mtu = attributes.path_mtu;
  qp.attributes.dest_qp_num = attributes.dest_qp_num;
  qp.attributes.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
  qp.receive_sequence = attributes.rq_psn & 0xFFFFFF;
  return 0;
}

int FakeHost::ModifyQp(ibv_qp* queue_pair, ibv_qp_attr* attributes, int mask) {
  absl::MutexLock lock(&engine_->mutex);
  auto& qp = *static_cast<FakeQp*>(queue_pair);
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : qp.state;
  if (qp.device->removed) {
    return EIO;
  }
  if (!IsAllowed(qp.state, to, mask)) {
    return EINVAL;
  }
  if (to == IBV_QPS_RESET) {
    engine_->Reset(qp);
    return 0;
  }
  if (to == IBV_QPS_ERR) {
    engine_->EnterError(qp);
    return 0;
  }
  int error = engine_->faults.OnCall(FakeCall::kModifyQp);
  if (error == 0 && (mask & IBV_QP_PORT) != 0) {
    error = Prepare(qp, *attributes);
  }
  if (error == 0 && (mask & IBV_QP_AV) != 0) {
    error = FindPath(qp, *attributes);
  }
  if (error == 0 && (mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 &&
      attributes->max_rd_atomic > qp.device->description.max_reads) {
    error = EINVAL;
  }
  if (error != 0) {
    return error;
  }
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) {
    qp.attributes.qp_access_flags = attributes->qp_access_flags;
  }
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) {
    qp.attributes.min_rnr_timer = attributes->min_rnr_timer;
  }
  if ((mask & IBV_QP_TIMEOUT) != 0) {
    qp.attributes.timeout = attributes->timeout;
    qp.attributes.retry_cnt = attributes->retry_cnt;
    qp.attributes.rnr_retry = attributes->rnr_retry;
    qp.attributes.max_rd_atomic = attributes->max_rd_atomic;
    qp.send_sequence = attributes->sq_psn & 0xFFFFFF;
  }
  qp.state = to;
  engine_->Wake(qp);
  return 0;
}

int FakeHost::PostOne(FakeQp& qp, const ibv_send_wr& request) {
  if (const int error = engine_->faults.OnPost(); error != 0) {
    return error;
  }
  if (!IsKnown(request.opcode) || request.num_sge < 0 ||
      static_cast<uint32_t>(request.num_sge) > qp.capacity.max_send_sge) {
    return EINVAL;
  }
  // Soft-RoCE's provider looks at what means nothing here.
  if (request.opcode == IBV_WR_BIND_MW && (request.num_sge != 0 || request.imm_data != 0)) {
    return EINVAL;
  }
  if (qp.sends_in_use >= qp.capacity.max_send_wr) {
    return ENOMEM;
  }
  FakeSend send;
  send.request = request;
  for (int i = 0; i < request.num_sge; ++i) {
    send.pieces.push_back(request.sg_list[i]);
    send.bytes += request.sg_list[i].length;
  }
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    if (!IsInlineable(request.opcode) || send.bytes > qp.capacity.max_inline_data) {
      return EINVAL;
    }
    for (const ibv_sge& piece : send.pieces) {
      send.inlined.append(reinterpret_cast<const char*>(piece.addr), piece.length);
    }
  }
  ++qp.sends_in_use;
  qp.sends.push_back(std::move(send));
  return 0;
}

int FakeHost::PostSend(ibv_qp* queue_pair, ibv_send_wr* requests, ibv_send_wr** bad) {
  absl::MutexLock lock(&engine_->mutex);
  auto& qp = *static_cast<FakeQp*>(queue_pair);
  int error = qp.state == IBV_QPS_RTS || qp.state == IBV_QPS_ERR ? 0 : EINVAL;
  for (; requests != nullptr && error == 0; requests = requests->next) {
    error = PostOne(qp, *requests);
    if (error != 0) {
      break;
    }
  }
  if (error != 0) {
    *bad = requests;
  }
  engine_->Wake(qp);
  return error;
}

int FakeHost::PostRecv(ibv_qp* queue_pair, ibv_recv_wr* requests, ibv_recv_wr** bad) {
  absl::MutexLock lock(&engine_->mutex);
  auto& qp = *static_cast<FakeQp*>(queue_pair);
  for (; requests != nullptr; requests = requests->next) {
    const int error = qp.state == IBV_QPS_RESET || requests->num_sge < 0 ||
                              static_cast<uint32_t>(requests->num_sge) > qp.capacity.max_recv_sge
                          ? EINVAL
                      : qp.receives_in_use >= qp.capacity.max_recv_wr ? ENOMEM
                                                                      : 0;
    if (error != 0) {
      *bad = requests;
      return error;
    }
    ++qp.receives_in_use;
    if (qp.state == IBV_QPS_ERR && qp.device->description.soft_roce) {
      continue;  // taken, and never heard of again
    }
    qp.receives.push_back(
        {requests->wr_id, {requests->sg_list, requests->sg_list + requests->num_sge}});
  }
  engine_->Wake(qp);
  return 0;
}

}  // namespace shoal::transport
