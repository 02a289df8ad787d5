#include "core/transport/shm/connection.h"

#include <algorithm>
#include <cstring>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/streaming_copy.h"

namespace shoal::transport {
namespace {

// A post checks the gate between chunks, so that Close never waits longer than one takes: about a
// millisecond.
constexpr size_t kChunkBytes = 4 * kMiB;
// The same for a GPU, where waiting for a batch adds some ten microseconds: one to two
// milliseconds.
constexpr size_t kGpuBatchBytes = 64 * kMiB;
// The most pinned at once, which takes about a tenth of a second: a whole model's weights take many
// pieces, longer than a get may, and Close waits for one.
constexpr size_t kPinnedPieceBytes = 256 * kMiB;

// Completions and doorbells of a batch are announced together, but not delayed by more than the
// time that this many bytes take.
constexpr size_t kAnnounceBytes = 1 * kMiB;

template <typename Operation, typename Bytes>
size_t TotalBytes(std::span<const Operation> operations, Bytes Operation::*bytes) {
  size_t total = 0;
  for (const Operation& operation : operations) {
    total += (operation.*bytes).size();
  }
  return total;
}

std::span<std::byte> PieceOf(std::span<std::byte> memory, size_t piece) {
  const size_t begin = piece * kPinnedPieceBytes;
  return memory.subspan(begin, std::min(kPinnedPieceBytes, memory.size() - begin));
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

bool ShmConnectionState::exposes_gpu_memory() const {
  return std::ranges::any_of(options_.exposed, [](const std::shared_ptr<Region>& region) {
    return static_cast<const ShmRegion&>(*region).share().has_value();
  });
}

bool ShmConnectionState::Open(PeerMemory peer) {
  absl::MutexLock lock(&post_mutex_);
  if (closing_.load()) {
    return false;
  }
  for (const PeerRegion& region : peer.regions) {
    const size_t pieces = (region.bytes().size() + kPinnedPieceBytes - 1) / kPinnedPieceBytes;
    pinnings_.push_back({.pieces = std::vector<bool>(pieces)});
  }
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

std::span<std::byte> ShmConnectionState::GpuSide(int region) const {
  const size_t index = static_cast<size_t>(region);
  const SharedMemory& source = peer_memory_->gpu_sources[index];
  return source.size() > 0 ? std::span(source.data(), source.size())
                           : peer_memory_->regions[index].bytes();
}

void ShmConnectionState::ForgetPeerMemory() {
  for (size_t region = 0; region < pinnings_.size(); ++region) {
    const std::vector<bool>& pieces = pinnings_[region].pieces;
    for (size_t piece = 0; piece < pieces.size(); ++piece) {
      if (pieces[piece]) {
        gpu_->Unpin(PieceOf(GpuSide(static_cast<int>(region)), piece));
      }
    }
  }
  pinnings_.clear();
  peer_memory_.reset();
}

void ShmConnectionState::PinPiece(int region, size_t piece) {
  const size_t index = static_cast<size_t>(region);
  Pinning& pinning = pinnings_[index];
  if (peer_memory_->regions[index].on_gpu() || pinning.pieces[piece] || pinning.refused) {
    return;
  }
  const std::span<std::byte> memory = GpuSide(region);
  const bool writable =
      peer_memory_->table[index].writable || peer_memory_->gpu_sources[index].size() > 0;
  const absl::Status status = gpu_->Pin(PieceOf(memory, piece), writable);
  pinning.pieces[piece] = status.ok();
  pinning.refused = !status.ok();
  if (!status.ok()) {
    LogWarning("{}: {} of its memory cannot be pinned, so the GPU copies it more slowly: {}",
               peer(), FormatBytes(static_cast<int64_t>(memory.size())), Message(status));
  }
}

bool ShmConnectionState::ByGpu(std::span<const std::byte> own, int region) const {
  if (gpu_ == nullptr || own.empty()) {
    return false;
  }
  return peer_memory_->regions[static_cast<size_t>(region)].on_gpu() ||
         table_->ResidenceOf(own) == Residence::kGpu;
}

absl::Status ShmConnectionState::Copy(std::byte* to, const std::byte* from, size_t size,
                                      bool past_caches) {
  for (size_t done = 0; done < size;) {
    if (closing_.load(std::memory_order_relaxed)) {
      return Cancelled("{}: the connection was closed", peer());
    }
    if (!peer_gate_.Enter()) {
      return Unavailable("{}: the peer closed the connection", peer());
    }
    const size_t chunk = std::min(kChunkBytes, size - done);
    if (past_caches) {
      StreamingCopy(to + done, from + done, chunk);
    } else {
      std::memcpy(to + done, from + done, chunk);
    }
    peer_gate_.Leave();
    done += chunk;
  }
  return absl::OkStatus();
}

absl::Status ShmConnectionState::RunGpuBatch(std::vector<GpuCopy>& batch) {
  if (closing_.load(std::memory_order_relaxed)) {
    return Cancelled("{}: the connection was closed", peer());
  }
  if (!peer_gate_.Enter()) {
    return Unavailable("{}: the peer closed the connection", peer());
  }
  absl::Status status = gpu_->Copy(batch);
  peer_gate_.Leave();
  batch.clear();
  return status;
}

absl::Status ShmConnectionState::CopyByGpu(std::span<const GpuTransfer> transfers,
                                           Direction direction) {
  std::vector<GpuCopy> batch;
  size_t batch_bytes = 0;
  for (const GpuTransfer& transfer : transfers) {
    const std::span<std::byte> memory = GpuSide(transfer.region);
    for (size_t done = 0; done < transfer.bytes;) {
      if (closing_.load(std::memory_order_relaxed)) {
        return Cancelled("{}: the connection was closed", peer());
      }
      const size_t at = static_cast<size_t>(transfer.offset) + done;
      const size_t piece = at / kPinnedPieceBytes;
      PinPiece(transfer.region, piece);
      const size_t bytes = std::min({transfer.bytes - done, kGpuBatchBytes - batch_bytes,
                                     (piece + 1) * kPinnedPieceBytes - at});
      std::byte* const own = transfer.own + done;
      std::byte* const theirs = memory.data() + at;
      const bool from_peer = direction == Direction::kFromPeer;
      batch.push_back({.to = from_peer ? own : theirs,
                       .from = from_peer ? theirs : own,
                       .bytes = static_cast<int64_t>(bytes)});
      done += bytes;
      batch_bytes += bytes;
      if (batch_bytes == kGpuBatchBytes) {
        SHOAL_RETURN_IF_ERROR(RunGpuBatch(batch));
        batch_bytes = 0;
      }
    }
  }
  return batch.empty() ? absl::OkStatus() : RunGpuBatch(batch);
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

size_t ShmConnectionState::ReadByGpu(std::span<const ReadOperation> operations) {
  std::vector<GpuTransfer> transfers;
  size_t bytes = 0;
  for (const ReadOperation& operation : operations) {
    if (bytes >= kGpuBatchBytes || !ByGpu(operation.into, operation.region)) {
      break;
    }
    transfers.push_back({.own = operation.into.data(),
                         .region = operation.region,
                         .offset = operation.offset,
                         .bytes = operation.into.size()});
    bytes += operation.into.size();
  }
  const absl::Status status = CopyByGpu(transfers, Direction::kFromPeer);
  std::vector<PendingEvent> done;
  done.reserve(transfers.size());
  for (const ReadOperation& operation : operations.first(transfers.size())) {
    PushCompletion(done, Event::Kind::kReadDone, operation.id, status);
  }
  queue_->Push(done);
  return transfers.size();
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
  for (size_t i = 0; i < operations.size(); ++i) {
    const ReadOperation& operation = operations[i];
    if (ByGpu(operation.into, operation.region)) {
      i += ReadByGpu(operations.subspan(i)) - 1;
      continue;
    }
    absl::Status status = absl::OkStatus();
    if (!operation.into.empty()) {
      const std::byte* from =
          peer_memory_->regions[operation.region].bytes().data() + operation.offset;
      status = Copy(operation.into.data(), from, operation.into.size(), stream);
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
      if (ByGpu(operation.from, operation.region)) {
        const GpuTransfer transfer = {.own = const_cast<std::byte*>(operation.from.data()),
                                      .region = operation.region,
                                      .offset = operation.offset,
                                      .bytes = operation.from.size()};
        status = CopyByGpu({&transfer, 1}, Direction::kToPeer);
      } else {
        std::byte* to = peer_memory_->regions[operation.region].bytes().data() + operation.offset;
        status = Copy(to, operation.from.data(), operation.from.size(), stream);
      }
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
    absl::MutexLock lock(&post_mutex_);  // stops a post in progress at its next chunk
    ForgetPeerMemory();
  }
  if (!own_gate_.CloseAndWait(patience) && patience > absl::ZeroDuration()) {
    LogWarning(
        "{}: the peer stopped in the middle of a copy; it may still finish that copy of at most {} "
        "in the regions exposed to it",
        peer(), FormatBytes(exposes_gpu_memory() ? kGpuBatchBytes : kChunkBytes));
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
