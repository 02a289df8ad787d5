#include "core/transport/verbs/receive_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>

#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr size_t kChain = 32;
static_assert(kChain <= ReceiveQueue::kSpare / 2);

}  // namespace

absl::StatusOr<std::unique_ptr<ReceiveQueue>> ReceiveQueue::Create(QueuePair* pair, int depth) {
  std::unique_ptr<ReceiveQueue> queue(new ReceiveQueue(pair, depth));
  queue->mr_ = pair->api().RegMr(pair->device().pd(), queue->memory_.data(), queue->memory_.size(),
                                 IBV_ACCESS_LOCAL_WRITE);
  if (queue->mr_ == nullptr) {
    return VerbsError(errno, fmt::format("registering buffers with {}", pair->device().name()));
  }
  return queue;
}

ReceiveQueue::~ReceiveQueue() {
  if (mr_ != nullptr) {
    pair_->api().DeregMr(mr_);
  }
}

std::byte* ReceiveQueue::Address(uint64_t id) const {
  return id == 0 ? memory_.data() : memory_.data() + kGreetingBytes + (id - 1) * kMessageBytes;
}

absl::Status ReceiveQueue::Post(std::span<const uint64_t> ids) {
  std::array<ibv_recv_wr, kChain> requests;
  std::array<ibv_sge, kChain> pieces;
  while (!ids.empty()) {
    const size_t count = std::min(ids.size(), kChain);
    for (size_t i = 0; i < count; ++i) {
      pieces[i] = {.addr = reinterpret_cast<uint64_t>(Address(ids[i])),
                   .length = static_cast<uint32_t>(ids[i] == 0 ? kGreetingBytes : kMessageBytes),
                   .lkey = mr_->lkey};
      requests[i] = {.wr_id = ids[i] | kReceive,
                     .next = i + 1 == count ? nullptr : &requests[i + 1],
                     .sg_list = &pieces[i],
                     .num_sge = 1};
    }
    ibv_recv_wr* bad = nullptr;
    const int error = pair_->api().PostRecv(pair_->qp(), requests.data(), &bad);
    if (error != 0) {
      return ErrnoToStatus(error, fmt::format("{}: posting receives", pair_->device().name()));
    }
    ids = ids.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status ReceiveQueue::PostAll() {
  std::vector<uint64_t> ids(depth_);
  std::iota(ids.begin(), ids.end(), uint64_t{0});
  return Post(ids);
}

std::span<const std::byte> ReceiveQueue::Message(uint64_t id, size_t bytes) const {
  id &= ~kReceive;
  if (id >= depth_ || bytes > (id == 0 ? kGreetingBytes : kMessageBytes)) {
    return {};
  }
  return {Address(id), bytes};
}

absl::Status ReceiveQueue::Repost(uint64_t id) {
  id &= ~kReceive;
  if (id >= depth_) {
    return Internal("{}: a receive that was never posted", pair_->device().name());
  }
  free_.push_back(id);
  if (free_.size() < kChain) {
    return absl::OkStatus();
  }
  const absl::Status status = Post(free_);
  free_.clear();
  return status;
}

}  // namespace shoal::transport
