#include "server/service/client_connection.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/push_header.h"
#include "core/transport/shared_words.h"

namespace shoal::server {
namespace {

// Operation id of a ring's write; an acknowledgement's is its slot's index.
constexpr uint64_t kRingOperation = ~uint64_t{0};

}  // namespace

ClientConnection::ClientConnection(const Options& options,
                                   std::unique_ptr<transport::Connection> connection, Slots slots,
                                   std::shared_ptr<transport::Region> staging,
                                   ServerMetrics* metrics)
    : options_(options),
      connection_(std::move(connection)),
      id_(connection_->id()),
      memory_(std::move(slots)),
      staging_(std::move(staging)),
      metrics_(metrics),
      received_bytes_(metrics->received_bytes(options.transport)),
      slots_(static_cast<size_t>(options.slots)) {}

transport::PushHeader ClientConnection::CopyHeader(int64_t slot) const {
  return transport::CopyShared<transport::PushHeader>(memory_.headers->bytes().data() +
                                                      slot * options_.slot_bytes);
}

bool ClientConnection::MarkWaiting(int64_t slot) {
  return slot >= 0 && slot < options_.slots &&
         !slots_[static_cast<size_t>(slot)].waiting.exchange(true);
}

void ClientConnection::TakePush(int64_t slot, const PushHandler& handler) {
  // A doorbell from here on makes the slot waiting again.
  slots_[static_cast<size_t>(slot)].waiting.store(false);
  const transport::PushHeader header = CopyHeader(slot);
  if (!transport::IsWhole(header) || header.push_id == 0) {
    // A late doorbell during the next push's write, or damaged: LookOver tells.
    absl::MutexLock lock(&mutex_);
    Slot& state = slots_[static_cast<size_t>(slot)];
    state.broken = header;
    state.broken_seen = false;
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    Slot& state = slots_[static_cast<size_t>(slot)];
    state.broken.reset();
    if (state.answer.push_id == header.push_id) {
      Post(slot);
      return;
    }
    if (state.being_taken) {
      return;  // rung twice: the other thread answers
    }
    state.being_taken = true;
  }
  const PushPayload payload = {
      .bytes = memory_.payloads->bytes().subspan(
          static_cast<size_t>(slot * options_.slot_bytes + transport::kPushHeaderBytes),
          static_cast<size_t>(options_.slot_bytes - transport::kPushHeaderBytes)),
      .place = memory_.place};
  const PushVerdict verdict = handler(options_.client, header, payload);
  if (verdict.code == absl::StatusCode::kDataLoss) {
    metrics_->malformed_pushes.Increment();
    Close();
    return;
  }
  if (verdict.code == absl::StatusCode::kOk) {
    received_bytes_.Increment(
        static_cast<double>(header.count * SizeOf(static_cast<DType>(header.dtype))));
  }
  Answer(slot, {.push_id = header.push_id,
                .code = static_cast<int32_t>(verdict.code),
                .applied_before = verdict.applied_before ? 1u : 0u});
}

void ClientConnection::Answer(int64_t slot, const transport::PushAcknowledgement& answer) {
  absl::MutexLock lock(&mutex_);
  Slot& state = slots_[static_cast<size_t>(slot)];
  state.answer = answer;
  state.being_taken = false;
  Post(slot);
}

void ClientConnection::Post(int64_t slot) {
  Slot& state = slots_[static_cast<size_t>(slot)];
  state.answer_owed = true;
  if (state.write_under_way) {
    return;  // OnWriteDone continues: the staging memory is in use.
  }
  constexpr size_t kSize = sizeof(transport::PushAcknowledgement);
  const std::span<std::byte> staged =
      staging_->bytes().subspan(static_cast<size_t>(slot) * kSize, kSize);
  std::memcpy(staged.data(), &state.answer, kSize);
  const transport::WriteOperation write = {.id = static_cast<uint64_t>(slot),
                                           .region = 0,
                                           .offset = slot * static_cast<int64_t>(kSize),
                                           .from = staged,
                                           .ring = true,
                                           .immediate = static_cast<uint32_t>(slot)};
  const absl::Status status = connection_->PostWrites({&write, 1});
  if (status.ok()) {
    state.answer_owed = false;
    state.write_under_way = true;
  } else if (!absl::IsResourceExhausted(status)) {
    // The connection is closing; after kClosed the client asks again over the next one.
    state.answer_owed = false;
    LogDebug("cannot acknowledge a push of {}: {}", options_.client.name, Message(status));
  }
}

void ClientConnection::Ring(uint32_t immediate) {
  absl::MutexLock lock(&mutex_);
  ring_ = immediate;
  ring_owed_ = true;
  PostRing();
}

void ClientConnection::PostRing() {
  if (!ring_owed_ || ring_under_way_) {
    return;
  }
  const transport::WriteOperation write = {
      .id = kRingOperation, .region = 0, .ring = true, .immediate = ring_};
  const absl::Status status = connection_->PostWrites({&write, 1});
  ring_under_way_ = status.ok();
  // LookOver retries after a full queue; a closing connection needs no ring.
  ring_owed_ = absl::IsResourceExhausted(status);
}

void ClientConnection::OnWriteDone(uint64_t operation) {
  if (operation == kRingOperation) {
    absl::MutexLock lock(&mutex_);
    ring_under_way_ = false;
    PostRing();
    return;
  }
  if (operation >= slots_.size()) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  Slot& state = slots_[operation];
  state.write_under_way = false;
  if (state.answer_owed) {
    Post(static_cast<int64_t>(operation));
  }
}

bool ClientConnection::IsDamaged(Slot& slot, const transport::PushHeader& now) const {
  if (!slot.broken.has_value()) {
    return false;
  }
  if (std::memcmp(&*slot.broken, &now, sizeof now) != 0) {
    slot.broken.reset();  // the next push, whose doorbell will come
    return false;
  }
  return std::exchange(slot.broken_seen, true);
}

std::vector<int64_t> ClientConnection::LookOver() {
  std::vector<int64_t> forgotten;
  absl::MutexLock lock(&mutex_);
  PostRing();
  for (int64_t slot = 0; slot < options_.slots; ++slot) {
    Slot& state = slots_[static_cast<size_t>(slot)];
    if (state.answer_owed && !state.write_under_way) {
      Post(slot);
    }
    if (!options_.writes_in_order && !state.broken.has_value()) {
      continue;
    }
    const transport::PushHeader header = CopyHeader(slot);
    if (IsDamaged(state, header)) {
      metrics_->malformed_pushes.Increment();
      LogWarning(
          "{} rang for slot {}, which holds no whole push header: its connection is closed, and it "
          "sends again over a new one",
          options_.client.name, slot);
      state.broken.reset();  // it counts once, however long the connection takes to end
      Close();
      return {};
    }
    if (!options_.writes_in_order) {
      continue;
    }
    const bool known = state.waiting || state.being_taken || header.push_id == state.answer.push_id;
    if (known || header.push_id == 0 || !transport::IsWhole(header)) {
      state.seen_push = 0;
    } else if (state.seen_push == header.push_id) {
      state.seen_push = 0;
      forgotten.push_back(slot);
    } else {
      state.seen_push = header.push_id;  // Its doorbell may still arrive.
    }
  }
  return forgotten;
}

void ClientConnection::Close() { connection_->Close(); }

void AddLocations(std::initializer_list<const JobStore*> stores, const JobStore::Regions& regions,
                  proto::ConnectReply& reply) {
  absl::flat_hash_set<int> told;
  const auto add = [&](int partition, const WeightsOffsets& place, int region) {
    const auto granted = regions.find(region);
    if (granted == regions.end() || !told.insert(partition).second) {
      return;
    }
    proto::PartitionLocation& location = *reply.add_partitions();
    location.set_partition(partition);
    location.set_header(place.header);
    location.set_even(place.buffers[0]);
    location.set_odd(place.buffers[1]);
    location.set_extent(static_cast<int>(std::distance(regions.begin(), granted)));
  };
  for (const JobStore* const store : stores) {
    for (const JobStore::Held& held : store->held()) {
      add(held.partition->spec().id, held.partition->place(), held.extent->region);
    }
  }
  for (const auto& [region, places] : regions) {
    for (const auto& [partition, place] : places) {
      add(partition, place, region);
    }
  }
}

}  // namespace shoal::server
