#include "core/transport/verbs/send_queue.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <bit>

#include "core/base/bytes.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

// An operation from this size on is worth its own completion.
constexpr uint32_t kLarge = 64 * kKiB;

ibv_wr_opcode OpcodeOf(Work::Kind kind) {
  switch (kind) {
    case Work::Kind::kRead:
    case Work::Kind::kProbe:
      return IBV_WR_RDMA_READ;
    case Work::Kind::kWrite:
      return IBV_WR_RDMA_WRITE;
    case Work::Kind::kWriteAndRing:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Work::Kind::kRing:
      return IBV_WR_SEND_WITH_IMM;
    case Work::Kind::kMessage:
      return IBV_WR_SEND;
    case Work::Kind::kBind:
      return IBV_WR_BIND_MW;
  }
  return IBV_WR_SEND;
}

}  // namespace

SendQueue::SendQueue(QueuePair* pair, int depth, int signal_interval)
    : pair_(pair),
      signal_interval_(signal_interval),
      depth_(static_cast<size_t>(depth)),
      mask_(std::bit_ceil(depth_) - 1),
      ring_(mask_ + 1) {}

// Sets the fields that a request of its kind needs, and of the rest those that providers read
// anyway: the whole struct is large.
inline void SendQueue::Fill(const Work& work, ibv_send_wr& request, ibv_sge& piece) const {
  request.opcode = OpcodeOf(work.kind);
  request.send_flags = 0;
  request.sg_list = nullptr;
  request.num_sge = 0;
  request.imm_data = htonl(work.immediate);
  if (work.kind == Work::Kind::kBind) [[unlikely]] {
    request.bind_mw.mw = work.window;
    request.bind_mw.rkey = ibv_inc_rkey(work.window->rkey);
    request.bind_mw.bind_info = {
        .mr = work.region,
        .addr = reinterpret_cast<uint64_t>(work.local),
        .length = work.window_bytes,
        .mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
    return;
  }
  if (work.length > 0) {
    piece = {.addr = reinterpret_cast<uint64_t>(work.local),
             .length = work.length,
             .lkey = work.local_key};
    request.sg_list = &piece;
    request.num_sge = 1;
    if (work.kind != Work::Kind::kRead && work.may_be_inline &&
        work.length <= static_cast<uint32_t>(pair_->inline_bytes())) {
      request.send_flags = IBV_SEND_INLINE;
    }
  }
  request.wr.rdma.remote_addr = work.remote;
  request.wr.rdma.rkey = work.remote_key;
}

inline bool SendQueue::WantsCompletion(const Work& work, bool last) {
  if (last || ++unsignaled_ >= signal_interval_ || (work.ends_operation && work.length >= kLarge)) {
    unsignaled_ = 0;
    return true;
  }
  return false;
}

void SendQueue::StageWaiting() {
  while (!waiting_.empty() && HasRoom()) {
    At(posted_ + staged_++) = waiting_.front();
    waiting_.pop_front();
  }
}

absl::Status SendQueue::Post() {
  std::array<ibv_send_wr, kChain> requests;
  std::array<ibv_sge, kChain> pieces;
  while (true) {
    if (!waiting_.empty()) {
      StageWaiting();
    }
    if (staged_ == 0) {
      return absl::OkStatus();
    }
    const size_t count = std::min<size_t>(staged_, kChain);
    for (size_t i = 0; i < count; ++i) {
      const Work& work = At(posted_ + i);
      const bool last = i + 1 == count;
      requests[i].wr_id = posted_ + i;
      requests[i].next = last ? nullptr : &requests[i + 1];
      Fill(work, requests[i], pieces[i]);
      if (WantsCompletion(work, last)) {
        requests[i].send_flags |= IBV_SEND_SIGNALED;
      }
    }
    posted_ += count;
    staged_ -= count;
    ibv_send_wr* bad = nullptr;
    const int error = pair_->api().PostSend(pair_->qp(), requests.data(), &bad);
    if (error != 0) [[unlikely]] {
      return ErrnoToStatus(error, fmt::format("{}: posting work", pair_->device().name()));
    }
  }
}

}  // namespace shoal::transport
