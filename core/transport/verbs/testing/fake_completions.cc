// What posters learn: acknowledgements, retries and their end, completions in order.
#include <algorithm>
#include <array>

#include "core/base/check.h"
#include "core/transport/verbs/testing/fake_engine.h"

namespace shoal::transport {
namespace {

constexpr uint8_t kForEver = 7;  // value of a retry count; soft-RoCE treats both counts so

// The wait for a receiver that is not ready, in units of 10 us, by code.
constexpr std::array<int, 32> kNotReady = {65536, 1,    2,    3,     4,     6,     8,     12,
                                           16,    24,   32,   48,    64,    96,    128,   192,
                                           256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                           4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

absl::Duration AcknowledgementTimer(const ibv_qp_attr& attributes) {
  return attributes.timeout == 0
             ? absl::InfiniteDuration()
             : absl::Nanoseconds(4096) * static_cast<double>(uint64_t{1} << attributes.timeout);
}

ibv_wc_opcode CompletionOpcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    default:
      return IBV_WC_SEND;
  }
}

bool IsLocal(const FakeSend& send) {
  return send.request.opcode == IBV_WR_BIND_MW || send.request.opcode == IBV_WR_LOCAL_INV;
}

}  // namespace

FakeQp* FakeEngine::Reach(FakeQp& qp) {
  if (!qp.local.up() || !qp.remote.up()) {
    return nullptr;
  }
  FakeQp* peer = QueuePair(qp.attributes.dest_qp_num);
  const bool listens = peer != nullptr && peer->device == qp.remote.device &&
                       (peer->state == IBV_QPS_RTR || peer->state == IBV_QPS_RTS) &&
                       peer->local == qp.remote && peer->remote == qp.local;
  // Drops a packet out of sequence: what is meant for a destroyed queue pair does not reach another
  // that got its number.
  if (!listens || peer->receive_sequence != qp.send_sequence) {
    return nullptr;
  }
  qp.retries = 0;
  return peer;
}

void FakeEngine::RetryLater(FakeQp& qp) {
  if (qp.attributes.retry_cnt == kForEver || ++qp.retries <= qp.attributes.retry_cnt) {
    qp.blocked_until = Now() + AcknowledgementTimer(qp.attributes);
    WakeAt(qp.blocked_until);
    return;
  }
  const auto oldest = std::ranges::find_if(qp.sends, [](const FakeSend& send) {
    return send.phase != FakeSend::Phase::kDone ||
           send.acknowledgement == FakeSend::Acknowledgement::kLost;
  });
  SHOAL_CHECK(oldest != qp.sends.end());
  const auto index = static_cast<size_t>(oldest - qp.sends.begin());
  qp.begun = std::max(qp.begun, index + 1);
  Fail(qp, *oldest, IBV_WC_RETRY_EXC_ERR);
}

void FakeEngine::RetryNotReady(FakeQp& qp, FakeQp& peer, FakeSend& send) {
  const auto fail = [&](ibv_wc_status status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (send.phase == FakeSend::Phase::kPosted) {
      ++qp.begun;
    }
    Fail(qp, send, status);
  };
  const ibv_qp_attr& attributes = qp.attributes;
  qp.not_ready_since = std::min(qp.not_ready_since, Now());
  // Soft-RoCE's acknowledgement timer keeps running while the receiver is not ready.
  if (qp.device->description.soft_roce && attributes.retry_cnt != kForEver &&
      Now() - qp.not_ready_since >= AcknowledgementTimer(attributes) * (attributes.retry_cnt + 1)) {
    fail(IBV_WC_RETRY_EXC_ERR);
    return;
  }
  if (attributes.rnr_retry != kForEver && ++qp.not_ready_retries > attributes.rnr_retry) {
    fail(IBV_WC_RNR_RETRY_EXC_ERR);
    return;
  }
  qp.blocked_until =
      Now() + absl::Microseconds(10) * kNotReady[peer.attributes.min_rnr_timer % kNotReady.size()];
  WakeAt(qp.blocked_until);
}

bool FakeEngine::Complete(FakeQp& qp) {
  if (qp.state != IBV_QPS_RTS || qp.sends.empty() || Now() < qp.blocked_until) {
    return false;
  }
  FakeSend& send = qp.sends.front();
  if (send.phase != FakeSend::Phase::kDone) {
    return false;
  }
  if (send.status != IBV_WC_SUCCESS) {
    PushSendCompletion(qp, send, send.status);
    qp.sends.pop_front();
    --qp.begun;
    EnterError(qp);
    return true;
  }
  // A read's data and a later request's refusal are acknowledgements as well.
  const bool heard = IsLocal(send) || send.request.opcode == IBV_WR_RDMA_READ || qp.failing;
  if (!heard && Reach(qp) == nullptr) {
    // The peer was destroyed after it took the request: whether its acknowledgement still came is
    // open.
    using Acknowledgement = FakeSend::Acknowledgement;
    if (send.acknowledgement == Acknowledgement::kNotDrawn) {
      send.acknowledgement =
          random_.Below(2) == 0 ? Acknowledgement::kLost : Acknowledgement::kArrived;
    }
    if (send.acknowledgement == Acknowledgement::kLost) {
      RetryLater(qp);
      return true;
    }
  }
  const bool signaled = qp.signal_all || (send.request.send_flags & IBV_SEND_SIGNALED) != 0;
  if (signaled) {
    PushSendCompletion(qp, send, IBV_WC_SUCCESS);
  } else {
    ++qp.unsignaled_places;
  }
  qp.sends.pop_front();
  --qp.begun;
  qp.not_ready_retries = 0;
  qp.not_ready_since = absl::InfiniteFuture();
  return true;
}

void FakeEngine::PushSendCompletion(FakeQp& qp, const FakeSend& send, ibv_wc_status status) {
  ibv_wc completion = {};
  completion.wr_id = send.request.wr_id;
  completion.status = status;
  completion.qp_num = qp.qp_num;
  if (status == IBV_WC_SUCCESS) {
    completion.opcode = CompletionOpcode(send.request.opcode);
    completion.byte_len = static_cast<uint32_t>(send.bytes);
  } else {
    // Only the id, the status and the number mean something then: code that reads more should fail.
    completion.opcode = static_cast<ibv_wc_opcode>(random_.Below(256));
    completion.byte_len = static_cast<uint32_t>(random_.Next());
  }
  qp.send_places.push_back(qp.unsignaled_places + 1);
  qp.unsignaled_places = 0;
  PushCompletion(qp.send_cq, {completion, false});
}

bool FakeEngine::Deliver(FakeQp& qp) {
  if (qp.arrivals.empty() || receives_held || Now() < qp.arrivals.front().not_before) {
    return false;
  }
  const FakeArrival arrival = qp.arrivals.front();
  qp.arrivals.pop_front();
  if (!arrival.lost) {
    PushCompletion(qp.recv_cq, {arrival.completion, true});
  }
  return true;
}

bool FakeEngine::Flush(FakeQp& qp) {
  if (qp.state != IBV_QPS_ERR) {
    return false;
  }
  if (!qp.sends.empty() && (qp.receives.empty() || random_.Below(2) == 0)) {
    PushSendCompletion(qp, qp.sends.front(), IBV_WC_WR_FLUSH_ERR);
    qp.sends.pop_front();
    qp.begun -= qp.begun > 0 ? 1 : 0;
    return true;
  }
  if (qp.receives.empty()) {
    return false;
  }
  FakeArrival arrival;
  arrival.completion.wr_id = qp.receives.front().id;
  arrival.completion.status = IBV_WC_WR_FLUSH_ERR;
  arrival.completion.qp_num = qp.qp_num;
  arrival.completion.opcode = static_cast<ibv_wc_opcode>(random_.Below(256));
  arrival.not_before = Now();
  qp.arrivals.push_back(arrival);
  qp.receives.pop_front();
  return true;
}

void FakeEngine::AddQueuePair(FakeQp* qp) {
  qp->qp_num = next_queue_pair & 0xFFFFFF;
  next_queue_pair = qp->qp_num + 1;
  queue_pairs_[qp->qp_num] = qp;
}

void FakeEngine::RemoveQueuePair(FakeQp* qp) {
  Reset(*qp);
  for (const auto& [index, window] : windows_) {
    if (window->owner == qp) {
      SHOAL_CHECK(!qp->device->description.soft_roce);  // its kernel would wait for the window
      Unbind(*window);
    }
  }
  for (FakeContext* context : qp->device->contexts) {
    std::erase_if(context->events, [&](const ibv_async_event& event) {
      return (event.event_type == IBV_EVENT_QP_ACCESS_ERR ||
              event.event_type == IBV_EVENT_QP_REQ_ERR) &&
             event.element.qp == qp;
    });
  }
  std::erase(runnable_, qp);
  queue_pairs_.erase(qp->qp_num);
}

FakeQp* FakeEngine::QueuePair(uint32_t number) {
  const auto it = queue_pairs_.find(number);
  return it == queue_pairs_.end() ? nullptr : it->second;
}

void FakeEngine::EnterError(FakeQp& qp) {
  qp.state = IBV_QPS_ERR;
  Wake(qp);
}

void FakeEngine::EnterErrorOn(const FakeDeviceState& device) {
  for (const auto& [number, qp] : queue_pairs_) {
    if (qp->device == &device && qp->state != IBV_QPS_RESET) {
      EnterError(*qp);
    }
  }
}

void FakeEngine::Reset(FakeQp& qp) {
  qp.state = IBV_QPS_RESET;
  qp.sends.clear();
  qp.receives.clear();
  qp.arrivals.clear();
  qp.begun = 0;
  qp.reads_moving = 0;
  qp.failing = false;
  qp.blocked_until = absl::InfinitePast();
  qp.retries = 0;
  qp.not_ready_retries = 0;
  qp.not_ready_since = absl::InfiniteFuture();
  qp.sends_in_use = 0;
  qp.receives_in_use = 0;
  qp.unsignaled_places = 0;
  qp.send_places.clear();
  // Soft-RoCE leaves completions where they are.
  if (!qp.device->description.soft_roce) {
    for (ibv_cq* queue : {qp.send_cq, qp.recv_cq}) {
      std::erase_if(static_cast<FakeCq*>(queue)->completions,
                    [&](const FakeCompletion& it) { return it.completion.qp_num == qp.qp_num; });
    }
  }
}

}  // namespace shoal::transport
