// Handles completions and arriving messages. Everything a peer sends is hostile until checked: a
// malformed message ends the connection.
#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "core/base/status.h"
#include "core/transport/verbs/connection.h"

namespace shoal::transport {
namespace {

constexpr int kBatch = 16;

// Says what an error completion means for the peer or this side.
absl::Status CompletionError(const std::string& peer, const ibv_wc& completion) {
  switch (completion.status) {
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return PermissionDenied(
          "{}: the peer's device refused the access; what was exposed may be gone", peer);
    case IBV_WC_RETRY_EXC_ERR:
      return Unavailable("{}: the peer's device does not answer", peer);
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Unavailable("{}: the peer takes no more messages", peer);
    default:
      return Unavailable("{}: RDMA work failed: {} (vendor code {})", peer,
                         ibv_wc_status_str(completion.status), completion.vendor_err);
  }
}

}  // namespace

void VerbsConnectionState::EndOperation(const Work& work, const absl::Status& status,
                                        EventSink& sink) {
  if (work.operation == Work::kNoOperation) {
    return;
  }
  // Pieces fail only when the connection ends, including an operation's last one.
  Outstanding& operation = operations_[work.operation];
  if (--operation.pieces > 0) {
    return;
  }
  free_operations_.push_back(work.operation);
  sink.Push(*this, {.kind = operation.kind,
                    .connection = id_,
                    .operation = operation.id,
                    .immediate = 0,
                    .status = status});
}

inline void VerbsConnectionState::EndWork(ConnectionRail& rail, const Work& work, EventSink& sink) {
  if (work.kind == Work::Kind::kMessage) {
    rail.SlotIsFree(work);
  }
  EndOperation(work, absl::OkStatus(), sink);
}

inline void VerbsConnectionState::TakeCompletion(size_t index, const ibv_wc& completion,
                                                 EventSink& sink) {
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
    TakeError(index, completion, sink);
    return;
  }
  ConnectionRail& rail = *rails_[index];
  rail.heard = true;
  rail.silent_ticks = 0;
  if ((completion.wr_id & ReceiveQueue::kReceive) != 0) {
    TakeReceive(index, completion, sink);
    return;
  }
  const auto end = [&](const Work& work)
                       ABSL_NO_THREAD_SAFETY_ANALYSIS { EndWork(rail, work, sink); };
  if (!rail.sends().Complete(completion.wr_id, end)) [[unlikely]] {
    Fail(Internal("{}: a completion of work that was never posted", peer()));
  }
}

void VerbsConnectionState::TakeError(size_t index, const ibv_wc& completion, EventSink& sink) {
  ConnectionRail& rail = *rails_[index];
  rail.pair().device().CountError(completion.status);
  if ((completion.wr_id & ReceiveQueue::kReceive) == 0) {
    rail.sends().CompleteBefore(completion.wr_id,
                                [&](const Work& work)
                                    ABSL_NO_THREAD_SAFETY_ANALYSIS { EndWork(rail, work, sink); });
  }
  // Flushes follow from another error, which says more; it may come after them.
  const absl::Status error = CompletionError(peer(), completion);
  if (index > 0) {
    GiveUpRail(index, error);
  } else {
    Fail(error);
  }
}

// Returns true if anything completed.
inline bool VerbsConnectionState::DriveRail(size_t index, EventSink& sink) {
  std::array<ibv_wc, kBatch> completions;
  bool any = false;
  while (!sink.full() && rails_[index] != nullptr) {
    QueuePair& pair = rails_[index]->pair();
    const int count = pair.api().PollCq(pair.cq(), kBatch, completions.data());
    if (count < 0) {
      Fail(Unavailable("{}: cannot read the completion queue of {}", peer(), pair.device().name()));
      return any;
    }
    if (count > 0 && !gpu_targets_.empty() && !AwaitGpus()) {
      return any;
    }
    for (int i = 0; i < count && rails_[index] != nullptr; ++i) {
      TakeCompletion(index, completions[static_cast<size_t>(i)], sink);
    }
    any = any || count > 0;
    if (count < kBatch) {
      break;
    }
  }
  return any;
}

void VerbsConnectionState::Progress(EventSink& sink) {
  absl::MutexLock lock(&mutex_);
  if (ended()) {
    return;
  }
  bool freed = false;
  for (size_t index = 0; index < rails_.size() && !sink.full(); ++index) {
    if (rails_[index] != nullptr) {
      freed = DriveRail(index, sink) || freed;
    }
  }
  if (freed) {
    PostWaiting();
    if (CreditIsDue()) {
      GiveCreditLocked();
    }
  }
  if (!failed_.ok() || goodbye_heard_) {
    EndLocked(failed_.ok() ? absl::OkStatus() : failed_, sink);
  }
}

// Runs at the end of a connection: handles what did complete, and a goodbye that explains why the
// rest will not.
void VerbsConnectionState::DrainRail(size_t index, EventSink& sink) {
  std::array<ibv_wc, kBatch> completions;
  QueuePair& pair = rails_[index]->pair();
  for (int count = kBatch; count == kBatch;) {
    count = pair.api().PollCq(pair.cq(), kBatch, completions.data());
    if (count > 0 && !gpu_targets_.empty() && !AwaitGpus()) {
      return;
    }
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions[static_cast<size_t>(i)];
      if (completion.status == IBV_WC_SUCCESS) {
        TakeCompletion(index, completion, sink);
      }
    }
  }
}

void VerbsConnectionState::TakeReceive(size_t index, const ibv_wc& completion, EventSink& sink) {
  ConnectionRail& rail = *rails_[index];
  absl::Status status;
  if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) {
    status = TakeDoorbell(index, ntohl(completion.imm_data), sink);
  } else {
    status = TakeMessage(index, rail.receives().Message(completion.wr_id, completion.byte_len));
  }
  if (status.ok()) {
    status = rail.receives().Repost(completion.wr_id);
  }
  if (!status.ok()) {
    Fail(status);
  }
}

absl::Status VerbsConnectionState::TakeDoorbell(size_t index, uint32_t immediate, EventSink& sink) {
  const uint64_t polled = doorbells_polled_.load(std::memory_order_relaxed);
  if (index > 0 || !open() ||
      doorbells_heard_ - polled >= static_cast<uint64_t>(terms_.doorbells_here)) {
    return InvalidArgument("{}: the peer rang more often than it may", peer());
  }
  ++doorbells_heard_;
  if (!closing_) {
    sink.Push(*this, {.kind = Event::Kind::kDoorbell,
                      .connection = id_,
                      .operation = 0,
                      .immediate = immediate,
                      .status = {}});
  }
  return absl::OkStatus();
}

absl::Status VerbsConnectionState::TakeMessage(size_t index, std::span<const std::byte> bytes) {
  SHOAL_ASSIGN_OR_RETURN(
      ReceivedMessage message,
      DecodeMessage(peer(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  switch (message.type) {
    case VerbsMessage::kHello:
    case VerbsMessage::kWelcome:
      return TakeGreeting(index, std::move(message));
    case VerbsMessage::kCredit:
      if (message.polled > rung_ || message.polled < polled_there_) {
        return InvalidArgument("{}: the peer polled doorbells that were never rung", peer());
      }
      polled_there_ = message.polled;
      return absl::OkStatus();
    case VerbsMessage::kGoodbye:
      goodbye_heard_ = true;
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status VerbsConnectionState::TakeGreeting(size_t index, ReceivedMessage message) {
  ConnectionRail& rail = *rails_[index];
  const VerbsMessage expected = terms_.is_acceptor ? VerbsMessage::kHello : VerbsMessage::kWelcome;
  if (message.type != expected || rail.ready) {
    return InvalidArgument("{}: a greeting out of place", peer());
  }
  if (terms_.is_acceptor) {
    if (!SameSecret(message.secret, terms_.secret)) {
      return Unauthenticated("{}: the peer does not know this handshake's secret", peer());
    }
    SHOAL_RETURN_IF_ERROR(rail.Send(ConnectionRail::Slot::kGreeting, EncodeWelcome(rail.told)));
  }
  if (index == 0) {
    remote_regions_ = message.memory.regions;
  }
  rail.remote = std::move(message.memory);
  rail.ready = true;
  if (index == 0 && !closing_) {
    phase_.store(Phase::kOpen);
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport
