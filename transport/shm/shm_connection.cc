#include "transport/shm/shm_connection.h"

#include <algorithm>
#include <cstring>

#include "common/bytes.h"
#include "common/logging.h"
#include "common/status.h"
#include "transport/streaming_copy.h"

namespace shoal::transport {
namespace {

// A post looks at the gate between chunks, so that Close never waits for longer than one takes:
// about a millisecond.
constexpr size_t kChunkBytes = 4 * kMiB;
// By a GPU, whose copies each cost some ten microseconds besides: a third of a millisecond.
constexpr size_t kGpuChunkBytes = 16 * kMiB;

// Completions and doorbells of a batch are announced together, but not held back for longer than
// this many bytes take.
constexpr size_t kAnnounceBytes = 1 * kMiB;

template <typename Operation, typename Bytes>
size_t TotalBytes(std::span<const Operation> operations, Bytes Operation::*bytes) {
  size_t total = 0;
  for (const Operation& operation : operations) {
    total += (operation.*bytes).size();
  }
  return total;
}

ShmControl* Control(const SharedMemory& memory) {
  return reinterpret_cast<ShmControl*>(memory.data());
}

ShmDirection* Outgoing(const SharedMemory& memory, bool is_connector) {
  return is_connector ? &Control(memory)->from_connector : &Control(memory)->from_acceptor;
}

}  // namespace

std::shared_ptr<ShmConnectionState> ShmConnectionState::Create(
    const ConnectionOptions& options, std::shared_ptr<const RegionTable> table,
    std::shared_ptr<GpuMemory> gpu, SharedMemory control, bool is_connector) {
  std::shared_ptr<ShmConnectionState> state(new ShmConnectionState(
      options, std::move(table), std::move(gpu), std::move(control), is_connector));
  state->queue_->Add(state);
  return state;
}

ShmConnectionState::ShmConnectionState(const ConnectionOptions& options,
                                       std::shared_ptr<const RegionTable> table,
                                       std::shared_ptr<GpuMemory> gpu, SharedMemory control,
                                       bool is_connector)
    : id_(NextConnectionId()),
      options_(options),
      queue_(static_cast<ShmQueue*>(options.queue)),
      queue_wake_(queue_->wake()),
      table_(std::move(table)),
      gpu_(std::move(gpu)),
      control_(std::move(control)),
      outstanding_(std::make_shared<OutstandingOperations>(options.max_outstanding)),
      peer_gate_(Outgoing(control_, is_connector)),
      doorbell_sender_(Outgoing(control_, is_connector)),
      doorbell_receiver_(Outgoing(control_, !is_connector)),
      own_gate_(Outgoing(control_, !is_connector)) {}

ShmConnectionState::~ShmConnectionState() {
  absl::MutexLock lock(&post_mutex_);
  ForgetPeerMemory();
}

bool ShmConnectionState::Open(PeerMemory peer) {
  absl::MutexLock lock(&post_mutex_);
  if (closing_.load()) {
    return false;
  }
  pinnings_.assign(peer.regions.size(), Pinning::kNotTried);
  peer_memory_ = std::move(peer);
  return true;
}

std::vector<int64_t> ShmConnectionState::remote_region_sizes() const {
  absl::MutexLock lock(&post_mutex_);
  std::vector<int64_t> sizes;
  if (peer_memory_.has_value()) {
    for (const RemoteRegion& region : peer_memory_->table) {
      sizes.push_back(region.bytes);
    }
  }
  return sizes;
}

absl::Status ShmConnectionState::CheckUsable() const {
  if (closing_.load()) {
    return Unavailable("{}: the connection is closed", peer());
  }
  if (!peer_memory_.has_value()) {
    return FailedPrecondition("{}: the peer has not completed the handshake yet", peer());
  }
  return absl::OkStatus();
}

void ShmConnectionState::ForgetPeerMemory() {
  for (size_t region = 0; region < pinnings_.size(); ++region) {
    if (pinnings_[region] == Pinning::kPinned) {
      const SharedMemory& memory = peer_memory_->regions[region];
      gpu_->Unpin({memory.data(), memory.size()});
    }
  }
  pinnings_.clear();
  peer_memory_.reset();
}

void ShmConnectionState::Pin(int region) {
  Pinning& pinning = pinnings_[static_cast<size_t>(region)];
  if (pinning != Pinning::kNotTried) {
    return;
  }
  const SharedMemory& memory = peer_memory_->regions[static_cast<size_t>(region)];
  const absl::Status status =
      gpu_->Pin({memory.data(), memory.size()},
                /*writable=*/peer_memory_->table[static_cast<size_t>(region)].writable);
  pinning = status.ok() ? Pinning::kPinned : Pinning::kRefused;
  if (!status.ok()) {
    LogWarning("{}: {} of its memory cannot be pinned, so the GPU copies it more slowly: {}",
               peer(), FormatBytes(static_cast<int64_t>(memory.size())), Message(status));
  }
}

ShmConnectionState::Way ShmConnectionState::WayOf(std::span<const std::byte> own, int region,
                                                  bool past_caches) {
  if (gpu_ != nullptr && !own.empty() && table_->ResidenceOf(own) == Residence::kGpu) {
    Pin(region);
    return Way::kByGpu;
  }
  return past_caches ? Way::kPastCaches : Way::kThroughCaches;
}

absl::Status ShmConnectionState::Copy(std::byte* to, const std::byte* from, size_t size, Way way) {
  for (size_t done = 0; done < size;) {
    if (closing_.load(std::memory_order_relaxed)) {
      return Cancelled("{}: the connection was closed", peer());
    }
    if (!peer_gate_.Enter()) {
      return Unavailable("{}: the peer closed the connection", peer());
    }
    const size_t chunk = std::min(way == Way::kByGpu ? kGpuChunkBytes : kChunkBytes, size - done);
    absl::Status status;
    switch (way) {
      case Way::kThroughCaches:
        std::memcpy(to + done, from + done, chunk);
        break;
      case Way::kPastCaches:
        StreamingCopy(to + done, from + done, chunk);
        break;
      case Way::kByGpu:
        status = gpu_->Copy(to + done, from + done, static_cast<int64_t>(chunk));
        break;
    }
    peer_gate_.Leave();
    SHOAL_RETURN_IF_ERROR(status);
    done += chunk;
  }
  return absl::OkStatus();
}

void ShmConnectionState::PushCompletion(std::vector<PendingEvent>& done, Event::Kind kind,
                                        uint64_t operation, absl::Status status) {
  Event event = {.kind = kind,
                 .connection = id_,
                 .operation = operation,
                 .immediate = 0,
                 .status = std::move(status)};
  done.push_back({std::move(event), outstanding_});
}

absl::Status ShmConnectionState::PostReads(std::span<const ReadOperation> operations) {
  absl::MutexLock lock(&post_mutex_);
  SHOAL_RETURN_IF_ERROR(CheckUsable());
  SHOAL_RETURN_IF_ERROR(CheckReads(peer(), peer_memory_->table, operations,
                                   [this](auto memory) { return table_->Contains(memory); }));
  if (!outstanding_->TakeReads(operations.size())) {
    return ResourceExhausted("{}: more than {} reads outstanding", peer(), outstanding_->limit());
  }
  const bool stream = TotalBytes(operations, &ReadOperation::into) >= StreamingCopyBytes();
  std::vector<PendingEvent> done;
  done.reserve(operations.size());
  size_t unannounced = 0;
  for (const ReadOperation& operation : operations) {
    absl::Status status = absl::OkStatus();
    if (!operation.into.empty()) {
      const std::byte* from = peer_memory_->regions[operation.region].data() + operation.offset;
      status = Copy(operation.into.data(), from, operation.into.size(),
                    WayOf(operation.into, operation.region, stream));
    }
    PushCompletion(done, Event::Kind::kReadDone, operation.id, std::move(status));
    unannounced += operation.into.size();
    if (unannounced >= kAnnounceBytes) {
      queue_->Push(done);
      done.clear();
      unannounced = 0;
    }
  }
  // What the next post reads must not be older than what this one read.
  std::atomic_thread_fence(std::memory_order_acquire);
  queue_->Push(done);
  return absl::OkStatus();
}

absl::Status ShmConnectionState::PostWrites(std::span<const WriteOperation> operations) {
  absl::MutexLock lock(&post_mutex_);
  SHOAL_RETURN_IF_ERROR(CheckUsable());
  SHOAL_RETURN_IF_ERROR(CheckWrites(peer(), peer_memory_->table, operations,
                                    [this](auto memory) { return table_->Contains(memory); }));
  const int64_t rings = CountRings(operations);
  SHOAL_ASSIGN_OR_RETURN(const int64_t room, doorbell_sender_.Room());
  if (rings > room) {
    return ResourceExhausted("{}: {} doorbells wait there already", peer(),
                             kMaxWaitingDoorbells - room);
  }
  if (!outstanding_->TakeWrites(operations.size())) {
    return ResourceExhausted("{}: more than {} writes outstanding", peer(), outstanding_->limit());
  }
  const bool stream = TotalBytes(operations, &WriteOperation::from) >= StreamingCopyBytes();
  std::vector<PendingEvent> done;
  done.reserve(operations.size());
  size_t unannounced = 0;
  absl::Status status = absl::OkStatus();
  for (const WriteOperation& operation : operations) {
    if (status.ok() && !operation.from.empty()) {
      std::byte* to = peer_memory_->regions[operation.region].data() + operation.offset;
      status = Copy(to, operation.from.data(), operation.from.size(),
                    WayOf(operation.from, operation.region, stream));
    }
    if (status.ok() && operation.ring) {
      doorbell_sender_.Ring(operation.immediate);
    }
    PushCompletion(done, Event::Kind::kWriteDone, operation.id, status);
    unannounced += operation.from.size();
    if (unannounced >= kAnnounceBytes) {
      NotifyPeer();
      queue_->Push(done);
      done.clear();
      unannounced = 0;
    }
  }
  if (rings > 0) {
    NotifyPeer();
  }
  queue_->Push(done);
  return absl::OkStatus();
}

void ShmConnectionState::NotifyPeer() {
  NotifySleeper(reinterpret_cast<const uint32_t*>(peer_memory_->queue_page.data()),
                peer_memory_->event_fd.get());
}

bool ShmConnectionState::Close(const absl::Status& why, absl::Duration patience) {
  closing_.store(true);
  absl::MutexLock close_lock(&close_mutex_);
  if (finished()) {
    return false;
  }
  close_status_ = why;
  if (absl::IsCancelled(why)) {
    closed_here_.store(true);
  }
  {
    absl::MutexLock lock(&post_mutex_);  // a post in progress ends at its next chunk
    ForgetPeerMemory();
  }
  if (!own_gate_.CloseAndWait(patience) && patience > absl::ZeroDuration()) {
    LogWarning(
        "{}: the peer stopped in the middle of a copy; it may still finish that copy of at most {} "
        "in the regions "
        "exposed to it",
        peer(), FormatBytes(kChunkBytes));
  }
  finished_.store(true, std::memory_order_release);
  queue_wake_->sleeper->Notify();
  return true;
}

bool ShmConnectionState::HasDoorbells() const {
  return !ring_broken_ && !closed_here_.load() && doorbells_after_end_ < kMaxWaitingDoorbells &&
         doorbell_receiver_.Waiting();
}

size_t ShmConnectionState::TakeDoorbells(std::span<Event> events) {
  size_t count = 0;
  while (count < events.size() && HasDoorbells()) {
    absl::StatusOr<std::optional<uint32_t>> doorbell = doorbell_receiver_.Take();
    if (!doorbell.ok()) {
      ring_broken_ = true;
      Close(Annotate(doorbell.status(), peer()), absl::ZeroDuration());
      break;
    }
    if (finished()) {
      ++doorbells_after_end_;  // nothing rings after the end, unless the peer lies
    }
    events[count++] = {.kind = Event::Kind::kDoorbell,
                       .connection = id_,
                       .operation = 0,
                       .immediate = **doorbell,
                       .status = {}};
  }
  return count;
}

Event ShmConnectionState::ClosedEvent() {
  absl::MutexLock lock(&close_mutex_);
  return {.kind = Event::Kind::kClosed,
          .connection = id_,
          .operation = 0,
          .immediate = 0,
          .status = close_status_};
}

}  // namespace shoal::transport
