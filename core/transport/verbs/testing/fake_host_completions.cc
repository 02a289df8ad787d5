// Completion queues and channels.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/check.h"
#include "core/transport/verbs/testing/fake_host.h"

namespace shoal::transport {
namespace {

// The kernel waits as long as it takes for events to be acknowledged.
constexpr absl::Duration kPatience = absl::Seconds(10);

}  // namespace

ibv_comp_channel* FakeHost::CreateCompChannel(ibv_context* context) {
  absl::MutexLock lock(&engine_->mutex);
  if (static_cast<FakeContext*>(context)->state->removed) {
    errno = EIO;
    return nullptr;
  }
  auto* channel = new FakeChannel();
  channel->context = context;
  channel->events_fd = UniqueFd(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC));
  SHOAL_CHECK(channel->events_fd.valid());
  channel->fd = channel->events_fd.get();
  ++engine_->live.channels;
  return channel;
}

int FakeHost::DestroyCompChannel(ibv_comp_channel* channel) {
  absl::MutexLock lock(&engine_->mutex);
  auto* gone = static_cast<FakeChannel*>(channel);
  if (gone->queues > 0) {
    return EBUSY;
  }
  delete gone;
  --engine_->live.channels;
  return 0;
}

ibv_cq* FakeHost::CreateCq(ibv_context* context, int entries, void* user,
                           ibv_comp_channel* channel) {
  absl::MutexLock lock(&engine_->mutex);
  const FakeDevice& device = static_cast<FakeContext*>(context)->state->description;
  int error = MayMake(context, FakeCall::kCreateCq);
  if (error == 0 && (entries < 1 || entries > device.max_completions)) {
    error = EINVAL;
  }
  if (error != 0) {
    errno = error;
    return nullptr;
  }
  auto* cq = new FakeCq();
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = user;
  cq->cqe = entries;
  if (channel != nullptr) {
    ++static_cast<FakeChannel*>(channel)->queues;
  }
  ++engine_->live.completion_queues;
  return cq;
}

int FakeHost::DestroyCq(ibv_cq* cq) {
  absl::MutexLock lock(&engine_->mutex);
  auto* gone = static_cast<FakeCq*>(cq);
  if (gone->queue_pairs > 0) {
    return EBUSY;
  }
  engine_->WithdrawEvents(*gone);
  const auto acknowledged = [gone] { return gone->events_taken == gone->events_acknowledged; };
  SHOAL_CHECK(engine_->mutex.AwaitWithTimeout(absl::Condition(&acknowledged), kPatience));
  if (gone->channel != nullptr) {
    --static_cast<FakeChannel*>(gone->channel)->queues;
  }
  delete gone;
  --engine_->live.completion_queues;
  return 0;
}

int FakeHost::ReqNotifyCq(ibv_cq* cq) {
  absl::MutexLock lock(&engine_->mutex);
  static_cast<FakeCq*>(cq)->armed = true;
  return 0;
}

int FakeHost::GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) {
  auto& from = *static_cast<FakeChannel*>(channel);
  while (true) {
    uint64_t one = 0;
    if (read(from.fd, &one, sizeof one) != sizeof one) {
      return errno;
    }
    absl::MutexLock lock(&engine_->mutex);
    if (from.events.empty()) {
      continue;  // withdrawn with its queue
    }
    FakeCq* taken = from.events.front();
    from.events.pop_front();
    ++taken->events_taken;
    *cq = taken;
    return 0;
  }
}

void FakeHost::AckCqEvents(ibv_cq* cq, unsigned int count) {
  absl::MutexLock lock(&engine_->mutex);
  static_cast<FakeCq*>(cq)->events_acknowledged += count;
}

int FakeHost::PollCq(ibv_cq* cq, int entries, ibv_wc* completions) {
  absl::MutexLock lock(&engine_->mutex);
  auto& from = *static_cast<FakeCq*>(cq);
  const int count = std::min(entries, static_cast<int>(from.completions.size()));
  for (int i = 0; i < count; ++i) {
    const FakeCompletion polled = from.completions.front();
    from.completions.pop_front();
    completions[i] = polled.completion;
    FakeQp* qp = engine_->QueuePair(polled.completion.qp_num);
    if (qp == nullptr) {
      continue;
    }
    // Frees the places that it stands for. There are none if the queue pair has been reset since.
    if (polled.receive) {
      qp->receives_in_use -= std::min(qp->receives_in_use, 1u);
    } else if (!qp->send_places.empty()) {
      qp->sends_in_use -= qp->send_places.front();
      qp->send_places.pop_front();
    }
  }
  return count;
}

}  // namespace shoal::transport
