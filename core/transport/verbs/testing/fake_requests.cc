// How requests run: begun in order, moved piece by piece.
#include <algorithm>
#include <array>

#include "core/transport/verbs/testing/fake_engine.h"

namespace shoal::transport {
namespace {

constexpr uint64_t kPieceBytes = 64 << 10;  // of a transfer in one action
constexpr uint32_t kSequenceMask = 0xFFFFFF;

bool HasImmediate(const FakeSend& send) {
  return send.request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
         send.request.opcode == IBV_WR_SEND_WITH_IMM;
}

bool IsSend(const FakeSend& send) {
  return send.request.opcode == IBV_WR_SEND || send.request.opcode == IBV_WR_SEND_WITH_IMM;
}

bool IsRead(const FakeSend& send) { return send.request.opcode == IBV_WR_RDMA_READ; }

uint64_t Room(const FakeReceive& receive) {
  uint64_t bytes = 0;
  for (const ibv_sge& piece : receive.pieces) {
    bytes += piece.length;
  }
  return bytes;
}

}  // namespace

bool FakeEngine::Advance(FakeQp& qp) {
  if (qp.state != IBV_QPS_RTS || qp.failing || Now() < qp.blocked_until) {
    return false;
  }
  if (qp.begun > 0) {
    FakeSend& last = qp.sends[qp.begun - 1];
    if (last.phase == FakeSend::Phase::kMoving && !IsRead(last)) {
      FakeQp* peer = Reach(qp);
      if (peer == nullptr) {
        RetryLater(qp);
      } else if (IsSend(last)) {
        MoveSend(qp, *peer, last);
      } else {
        MoveWrite(qp, *peer, last);
      }
      return true;
    }
  }
  return qp.begun < qp.sends.size() && Begin(qp, qp.sends[qp.begun]);
}

bool FakeEngine::Begin(FakeQp& qp, FakeSend& send) {
  const bool fenced = (send.request.send_flags & IBV_SEND_FENCE) != 0;
  if ((fenced && qp.reads_moving > 0) ||
      (IsRead(send) && qp.reads_moving >= std::max<int>(1, qp.attributes.max_rd_atomic))) {
    return false;
  }
  const bool local =
      send.request.opcode == IBV_WR_BIND_MW || send.request.opcode == IBV_WR_LOCAL_INV;
  FakeQp* const peer = local ? nullptr : Reach(qp);
  if (!local && peer == nullptr) {
    RetryLater(qp);
    return true;
  }
  if (!local && IsSend(send) && peer->receives.empty()) {
    RetryNotReady(qp, *peer, send);
    return true;
  }
  ++qp.begun;
  ++executed;
  const FakeFaults::RequestFault fault = faults.OnRequest();
  if (fault.status != IBV_WC_SUCCESS && !fault.executed) {
    Fail(qp, send, fault.status);
    return true;
  }
  send.injected = fault.status;
  if (send.request.opcode == IBV_WR_BIND_MW) {
    Bind(qp, send);
  } else if (send.request.opcode == IBV_WR_LOCAL_INV) {
    Invalidate(qp, send);
  } else {
    BeginRemote(qp, *peer, send);
  }
  return true;
}

void FakeEngine::BeginRemote(FakeQp& qp, FakeQp& peer, FakeSend& send) {
  const bool soft_roce = qp.device->description.soft_roce;
  if (send.bytes > qp.local.get().max_message_bytes && !soft_roce) {
    Fail(qp, send, IBV_WC_LOC_LEN_ERR);
    return;
  }
  if (!MayAccessPieces(qp, send)) {
    Fail(qp, send, soft_roce && !IsRead(send) ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR);
    return;
  }
  qp.send_sequence = (qp.send_sequence + 1) & kSequenceMask;
  peer.receive_sequence = (peer.receive_sequence + 1) & kSequenceMask;
  // Packets larger than the peer's path allows.
  const uint64_t packet = std::min<uint64_t>(send.bytes, 128u << qp.attributes.path_mtu);
  if (packet > (128u << peer.attributes.path_mtu)) {
    Refuse(qp, peer, send, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    return;
  }
  if (IsRead(send)) {
    BeginRead(qp, peer, send);
    return;
  }
  send.phase = FakeSend::Phase::kMoving;
  if (IsSend(send)) {
    MoveSend(qp, peer, send);
  } else if ((peer.attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
    Refuse(qp, peer, send, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
  } else {
    MoveWrite(qp, peer, send);
  }
}

void FakeEngine::BeginRead(FakeQp& qp, FakeQp& peer, FakeSend& send) {
  if ((peer.attributes.qp_access_flags & IBV_ACCESS_REMOTE_READ) == 0 ||
      qp.reads_moving >= peer.attributes.max_dest_rd_atomic) {
    Refuse(qp, peer, send, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    return;
  }
  const auto& remote = send.request.wr.rdma;
  if (send.bytes > 0 && RemoteBytes(peer, remote.rkey, remote.remote_addr, send.bytes,
                                    IBV_ACCESS_REMOTE_READ) == nullptr) {
    Refuse(qp, peer, send, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    return;
  }
  if (send.bytes == 0) {
    Done(send);
  } else {
    send.phase = FakeSend::Phase::kMoving;
    ++qp.reads_moving;
  }
}

bool FakeEngine::MoveRead(FakeQp& qp) {
  if (qp.state != IBV_QPS_RTS || qp.reads_moving == 0 || Now() < qp.blocked_until) {
    return false;
  }
  const auto end = qp.sends.begin() + static_cast<std::ptrdiff_t>(qp.begun);
  const auto oldest = std::find_if(qp.sends.begin(), end, [](const FakeSend& send) {
    return send.status != IBV_WC_SUCCESS ||
           (IsRead(send) && send.phase == FakeSend::Phase::kMoving);
  });
  if (oldest == end || oldest->status != IBV_WC_SUCCESS) {
    return false;  // what comes after a failed request does not matter any more
  }
  FakeSend& send = *oldest;
  FakeQp* const peer = Reach(qp);
  if (peer == nullptr) {
    RetryLater(qp);
    return true;
  }
  // Checked again each time: the right may have been removed meanwhile.
  const auto& remote = send.request.wr.rdma;
  const std::byte* from =
      RemoteBytes(*peer, remote.rkey, remote.remote_addr, send.bytes, IBV_ACCESS_REMOTE_READ);
  if (from == nullptr) {
    Refuse(qp, *peer, send, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    return true;
  }
  const uint64_t size = std::min(kPieceBytes, send.bytes - send.moved);
  if (!Scatter(qp, send.pieces, send.moved, {from + send.moved, size})) {
    Fail(qp, send, IBV_WC_LOC_PROT_ERR);
    return true;
  }
  send.moved += size;
  if (send.moved == send.bytes) {
    --qp.reads_moving;
    Done(send);
  }
  return true;
}

void FakeEngine::MoveWrite(FakeQp& qp, FakeQp& peer, FakeSend& send) {
  const auto& remote = send.request.wr.rdma;
  const uint64_t size = std::min(kPieceBytes, send.bytes - send.moved);
  if (size > 0) {
    std::byte* into =
        RemoteBytes(peer, remote.rkey, remote.remote_addr, send.bytes, IBV_ACCESS_REMOTE_WRITE);
    if (into == nullptr) {
      Refuse(qp, peer, send, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
      return;
    }
    if (!Gather(qp, send, send.moved, {into + send.moved, size})) {
      Fail(qp, send, IBV_WC_LOC_PROT_ERR);
      return;
    }
    send.moved += size;
  }
  if (send.moved < send.bytes) {
    return;
  }
  if (HasImmediate(send)) {
    if (peer.receives.empty()) {
      RetryNotReady(qp, peer, send);
      return;
    }
    Arrive(peer, send, IBV_WC_SUCCESS);
  }
  Done(send);
}

void FakeEngine::MoveSend(FakeQp& qp, FakeQp& peer, FakeSend& send) {
  // Begun when one was posted, and no other sender takes it.
  const FakeReceive& receive = peer.receives.front();
  if (send.bytes > Room(receive)) {
    Arrive(peer, send, IBV_WC_LOC_LEN_ERR);
    Refuse(qp, peer, send, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    return;
  }
  const uint64_t size = std::min(kPieceBytes, send.bytes - send.moved);
  std::vector<std::byte> message(size);
  if (!Gather(qp, send, send.moved, message)) {
    Fail(qp, send, IBV_WC_LOC_PROT_ERR);
    return;
  }
  if (!Scatter(peer, receive.pieces, send.moved, message)) {
    Arrive(peer, send, IBV_WC_LOC_PROT_ERR);
    Refuse(qp, peer, send, IBV_WC_REM_OP_ERR, IBV_EVENT_QP_ACCESS_ERR);
    return;
  }
  send.moved += size;
  if (send.moved == send.bytes) {
    Arrive(peer, send, IBV_WC_SUCCESS);
    Done(send);
  }
}

void FakeEngine::Arrive(FakeQp& peer, const FakeSend& send, ibv_wc_status status) {
  FakeArrival arrival;
  ibv_wc& completion = arrival.completion;
  completion.wr_id = peer.receives.front().id;
  completion.status = status;
  completion.qp_num = peer.qp_num;
  completion.src_qp = peer.attributes.dest_qp_num;
  if (status == IBV_WC_SUCCESS) {
    completion.opcode = IsSend(send) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    completion.byte_len = static_cast<uint32_t>(send.bytes);
    if (HasImmediate(send)) {
      completion.wc_flags = IBV_WC_WITH_IMM;
      completion.imm_data = send.request.imm_data;
      arrival.lost = send.request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && faults.LosesReceive();
    }
  }
  peer.receives.pop_front();
  arrival.not_before = Now() + faults.OnReceive();
  WakeAt(arrival.not_before);
  peer.arrivals.push_back(arrival);
  Wake(peer);
}

void FakeEngine::Done(FakeSend& send) {
  send.phase = FakeSend::Phase::kDone;
  send.status = send.injected;
}

void FakeEngine::Fail(FakeQp& qp, FakeSend& send, ibv_wc_status status) {
  if (IsRead(send) && send.phase == FakeSend::Phase::kMoving) {
    --qp.reads_moving;
  }
  send.phase = FakeSend::Phase::kDone;
  send.status = status;
  qp.failing = true;
  qp.blocked_until = absl::InfinitePast();
  Wake(qp);
}

void FakeEngine::Refuse(FakeQp& qp, FakeQp& peer, FakeSend& send, ibv_wc_status status,
                        ibv_event_type event) {
  Fail(qp, send, status);
  while (MoveRead(qp)) {
    // The peer answered the earlier reads before it reached this one.
  }
  EnterError(peer);
  if (!peer.device->description.soft_roce) {
    ibv_async_event raised = {};
    raised.element.qp = &peer;
    raised.event_type = event;
    RaiseAsync(*peer.device, raised);
  }
}

}  // namespace shoal::transport
