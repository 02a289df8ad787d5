// How operations become work requests.
#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/verbs/connection.h"

namespace shoal::transport {
namespace {

constexpr int64_t kLargestPiece = 1 * kGiB;  // no device takes more in one work request

}  // namespace

inline uint32_t VerbsConnectionState::NewOperation(uint64_t id, Event::Kind kind) {
  if (free_operations_.empty()) {
    free_operations_.push_back(static_cast<uint32_t>(operations_.size()));
    operations_.emplace_back();
  }
  const uint32_t index = free_operations_.back();
  free_operations_.pop_back();
  operations_[index] = {.id = id, .kind = kind, .pieces = 0};
  return index;
}

// Uses the port with the smallest limit: a piece may move to another rail.
size_t VerbsConnectionState::LargestPiece() const {
  int64_t largest = kLargestPiece;
  if (verbs_.piece_bytes > 0) {
    largest = std::min(largest, verbs_.piece_bytes);
  }
  for (const auto& rail : rails_) {
    if (rail != nullptr && rail->local().rail.port.max_message_bytes > 0) {
      largest = std::min(largest, rail->local().rail.port.max_message_bytes);
    }
  }
  return static_cast<size_t>(largest);
}

inline size_t VerbsConnectionState::PieceBytes(std::span<const std::byte> memory,
                                               const Registration& local, int region,
                                               int64_t offset) const {
  const auto remote_chunk =
      static_cast<size_t>(rails_[0]->remote.chunks[static_cast<size_t>(region)].bytes);
  return std::min({memory.size(), largest_piece_,
                   remote_chunk - FindChunk(static_cast<size_t>(offset), remote_chunk).within,
                   local.chunk_bytes() - local.Find(memory.data()).within});
}

inline void VerbsConnectionState::Address(Work& work, const ConnectionRail& rail,
                                          const Registration& local) const {
  work.local_key = local.mr(rail.local().device, local.Find(work.local).chunk)->lkey;
  const RemoteMemory::Chunks& chunks = rail.remote.chunks[work.remote_region];
  const ChunkPlace place =
      FindChunk(static_cast<size_t>(work.remote_offset), static_cast<size_t>(chunks.bytes));
  work.remote = chunks.chunks[place.chunk].address + place.within;
  work.remote_key = chunks.chunks[place.chunk].key;
}

// Pieces of a large read alternate between the rails; everything else takes the first.
size_t VerbsConnectionState::NextRail() {
  for (size_t i = 0; i < rails_.size(); ++i) {
    next_rail_ = (next_rail_ + 1) % rails_.size();
    if (rails_[next_rail_] != nullptr && rails_[next_rail_]->ready) {
      return next_rail_;
    }
  }
  return 0;
}

void VerbsConnectionState::AddRead(const ReadOperation& operation) {
  const uint32_t index = NewOperation(operation.id, Event::Kind::kReadDone);
  const Registration& local = *cache_.Find(operation.into);
  if (local.gpu() != nullptr) {
    NoteGpu(local);
  }
  const bool spread =
      rails_.size() > 1 && operation.into.size() >= static_cast<size_t>(verbs_.spread_bytes);
  int64_t offset = operation.offset;
  for (std::span<std::byte> left = operation.into; !left.empty();) {
    const size_t length = PieceBytes(left, local, operation.region, offset);
    ConnectionRail& rail = *rails_[spread ? NextRail() : 0];
    Work& work = rail.sends().Add();
    work.kind = Work::Kind::kRead;
    work.ends_operation = length == left.size();
    work.operation = index;
    work.length = static_cast<uint32_t>(length);
    work.local = left.data();
    work.remote_region = static_cast<uint32_t>(operation.region);
    work.remote_offset = offset;
    Address(work, rail, local);
    ++operations_[index].pieces;
    left = left.subspan(length);
    offset += static_cast<int64_t>(length);
  }
}

void VerbsConnectionState::AddWrite(const WriteOperation& operation) {
  const uint32_t index = NewOperation(operation.id, Event::Kind::kWriteDone);
  ConnectionRail& rail = *rails_[0];
  if (operation.from.empty()) {
    // An empty read keeps its place in the order and needs no right to write.
    operations_[index].pieces = 1;
    rail.sends().Add({.kind = operation.ring ? Work::Kind::kRing : Work::Kind::kProbe,
                      .ends_operation = true,
                      .operation = index,
                      .immediate = operation.immediate});
    return;
  }
  const Registration& local = *cache_.Find(operation.from);
  int64_t offset = operation.offset;
  for (std::span<const std::byte> left = operation.from; !left.empty();) {
    const size_t length = PieceBytes(left, local, operation.region, offset);
    const bool last = length == left.size();
    Work& work = rail.sends().Add();
    work.kind = last && operation.ring ? Work::Kind::kWriteAndRing : Work::Kind::kWrite;
    work.ends_operation = last;
    work.may_be_inline = local.gpu() == nullptr;
    work.operation = index;
    work.immediate = operation.immediate;
    work.length = static_cast<uint32_t>(length);
    work.local = const_cast<std::byte*>(left.data());
    work.remote_region = static_cast<uint32_t>(operation.region);
    work.remote_offset = offset;
    Address(work, rail, local);
    ++operations_[index].pieces;
    left = left.subspan(length);
    offset += static_cast<int64_t>(length);
  }
}

absl::Status VerbsConnectionState::PostReads(std::span<const ReadOperation> operations) {
  bool any_empty = false;
  {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(CheckUsable());
    const auto known = [this](auto memory) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return cache_.Find(memory) != nullptr;
    };
    SHOAL_RETURN_IF_ERROR(CheckReads(peer(), remote_regions_, operations, known));
    if (!outstanding_.TakeReads(operations.size())) {
      return ResourceExhausted("{}: more than {} reads outstanding", peer(), outstanding_.limit());
    }
    for (const ReadOperation& operation : operations) {
      if (operation.into.empty()) {
        any_empty = true;
      } else {
        AddRead(operation);
      }
    }
    PostWaiting();
  }
  if (any_empty) {
    CompleteEmpty(operations);
  }
  return absl::OkStatus();
}

void VerbsConnectionState::CompleteEmpty(std::span<const ReadOperation> operations) {
  std::vector<Event> events;
  for (const ReadOperation& operation : operations) {
    if (operation.into.empty()) {
      events.push_back(
          {.kind = Event::Kind::kReadDone, .connection = id_, .operation = operation.id});
    }
  }
  queue_->Keep(*this, events);
}

absl::Status VerbsConnectionState::PostWrites(std::span<const WriteOperation> operations) {
  const int64_t rings = CountRings(operations);
  if (!HasRoomFor(rings)) {
    queue_->Drive(*this);  // credit may have come unnoticed
  }
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckUsable());
  const auto known = [this](auto memory)
                         ABSL_NO_THREAD_SAFETY_ANALYSIS { return cache_.Find(memory) != nullptr; };
  SHOAL_RETURN_IF_ERROR(CheckWrites(peer(), remote_regions_, operations, known));
  const auto waiting = static_cast<int64_t>(rung_ - polled_there_);
  if (rings > 0 && waiting + rings > doorbells_there_) {
    return ResourceExhausted("{}: {} doorbells wait there already", peer(), waiting);
  }
  if (!outstanding_.TakeWrites(operations.size())) {
    return ResourceExhausted("{}: more than {} writes outstanding", peer(), outstanding_.limit());
  }
  rung_ += static_cast<uint64_t>(rings);
  for (const WriteOperation& operation : operations) {
    AddWrite(operation);
  }
  PostWaiting();
  return absl::OkStatus();
}

bool VerbsConnectionState::HasRoomFor(int64_t rings) const {
  if (rings == 0) {
    return true;
  }
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(rung_ - polled_there_) + rings <= doorbells_there_;
}

// Moves its reads to the first rail, re-addressed for it; nothing else runs on further rails.
void VerbsConnectionState::GiveUpRail(size_t index, const absl::Status& why) {
  LogWarning("{}: rail {} is given up, its reads go over {}: {}", peer(),
             rails_[index]->local().rail.device, rails_[0]->local().rail.device, Message(why));
  std::vector<Work> left;
  rails_[index]->sends().TakeAll([&](const Work& work) { left.push_back(work); });
  rails_[index].reset();
  for (Work& work : left) {
    if (work.operation != Work::kNoOperation) {
      Address(work, *rails_[0], *cache_.Find({work.local, work.length}));
      rails_[0]->sends().Add(work);
    }
  }
}

}  // namespace shoal::transport
