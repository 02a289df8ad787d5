#include "client/push_table.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/push_header.h"
#include "core/transport/shared_words.h"

namespace shoal::client {

using transport::kPushHeaderBytes;
using transport::PushAcknowledgement;
using transport::PushHeader;

namespace {

// The peer may be writing it concurrently: a scan takes only what it has seen twice.
PushAcknowledgement ReadAcknowledgement(std::span<const std::byte> region, size_t slot) {
  return transport::CopyShared<PushAcknowledgement>(region.data() +
                                                    slot * sizeof(PushAcknowledgement));
}

bool Answers(const PushAcknowledgement& answer, uint64_t push_id) {
  return answer.push_id == push_id && transport::AreZero(answer.reserved);
}

}  // namespace

PushTable::PushTable(const Options& options, const Layout* layout)
    : options_(options),
      layout_(layout),
      servers_(static_cast<size_t>(layout->servers)),
      gradients_(static_cast<size_t>(options.max_gradients)) {
  returns_.reserve(gradients_.size());
}

absl::Status PushTable::Grant(int index, const DataConnection& connection,
                              std::span<transport::Transport* const> transports) {
  Server& server = at(index);
  const auto slots = static_cast<size_t>(connection.slots);
  if (server.memory == nullptr) {
    const int64_t payload =
        options_.in_place ? 0 : layout_->largest_partition() * SizeOf(options_.gradient_type);
    server.buffer_bytes = options_.in_place
                              ? kPushHeaderBytes
                              : RoundUp(kPushHeaderBytes + payload, transport::kBufferAlignment);
    SHOAL_ASSIGN_OR_RETURN(server.memory, RegisteredMemory::Create(
                                              server.buffer_bytes * connection.slots, transports));
    server.buffers.resize(slots);
    for (size_t i = 0; i < slots; ++i) {
      server.buffers[i].memory =
          server.memory->bytes().data() + static_cast<int64_t>(i) * server.buffer_bytes;
    }
  }
  server.slot_owner.assign(slots, -1);
  return absl::OkStatus();
}

bool PushTable::quiet() const {
  return all_filled() && outstanding() == 0 &&
         std::ranges::all_of(servers_, [](const Server& server) {
           return std::ranges::all_of(server.buffers, [](const PushBuffer& buffer) {
             return buffer.state == PushBuffer::State::kFree;
           });
         });
}

void PushTable::Begin(int64_t step, int64_t attempt) {
  ++attempt_serial_;
  step_ = step;
  attempt_ = attempt;
  packs_.clear();
  for (Server& server : servers_) {
    server.pending.clear();
    server.first = 0;
    server.acknowledged = 0;
    for (PushBuffer& buffer : server.buffers) {
      if (buffer.state == PushBuffer::State::kReady) {
        Free(server, buffer);
      }
    }
  }
  for (size_t i = 0; i < gradients_.size(); ++i) {
    GiveUp(static_cast<int>(i));
  }
}

// Of the few packs of a worker's step the one at hand is asked for most.
PushTable::Pack& PushTable::PackOf(int64_t number) {
  const auto found = std::find_if(packs_.rbegin(), packs_.rend(),
                                  [number](const Pack& pack) { return pack.number == number; });
  return found != packs_.rend() ? *found : packs_.emplace_back(Pack{.number = number});
}

bool PushTable::acknowledged_pack(int64_t number) const {
  return std::none_of(packs_.begin(), packs_.end(), [number](const Pack& pack) {
    return pack.number == number && pack.outstanding > 0;
  });
}

bool PushTable::Enqueue(int unit, const void* gradient, const plan::Contribution& contribution,
                        GradientReturn* done) {
  const auto free = std::find_if(gradients_.begin(), gradients_.end(),
                                 [](const Gradient& g) { return !g.active && g.returned; });
  if (free == gradients_.end()) {
    return false;
  }
  const UnitLayout& layout = layout_->unit(unit);
  *free = {.active = true,
           .returned = false,
           .unit = unit,
           .remaining = static_cast<int>(layout.partitions.size()),
           .data = static_cast<const std::byte*>(gradient),
           .contribution = contribution,
           .done = done};
  PackOf(contribution.pack).outstanding += static_cast<int64_t>(layout.partitions.size());
  const int index = static_cast<int>(free - gradients_.begin());
  for (const int partition : layout.partitions) {
    at(layout_->writer_of(partition))
        .pending.push_back({.gradient = index, .partition = partition});
  }
  return true;
}

PushTable::Pending PushTable::TakePending(Server& server) {
  const Pending pending = server.pending[server.first++];
  if (server.first * 2 > server.pending.size()) {
    server.pending.erase(server.pending.begin(),
                         server.pending.begin() + static_cast<std::ptrdiff_t>(server.first));
    server.first = 0;
  }
  return pending;
}

PushTable::PushBuffer* PushTable::TakeBuffer(Server& server, PushBuffer::State state) {
  if (!waiting(server)) {
    return nullptr;
  }
  const auto free =
      std::find_if(server.buffers.begin(), server.buffers.end(),
                   [](const PushBuffer& p) { return p.state == PushBuffer::State::kFree; });
  if (free == server.buffers.end()) {
    return nullptr;
  }
  const Pending pending = TakePending(server);
  *free = {.state = state,
           .memory = free->memory,
           .partition = pending.partition,
           .gradient = pending.gradient,
           .contribution = gradients_[static_cast<size_t>(pending.gradient)].contribution,
           .number = next_number_++,
           .step = step_,
           .attempt = attempt_,
           .attempt_serial = attempt_serial_};
  ++gradients_[static_cast<size_t>(pending.gradient)].reading;
  return &*free;
}

std::optional<PushTable::Filling> PushTable::NextToFill(int index) {
  Server& server = at(index);
  const PushBuffer* const buffer =
      options_.in_place ? nullptr : TakeBuffer(server, PushBuffer::State::kFilling);
  if (buffer == nullptr) {
    return std::nullopt;
  }
  const plan::PartitionSpec& spec = layout_->partition(buffer->partition);
  const auto* const gradient =
      reinterpret_cast<const float*>(gradients_[static_cast<size_t>(buffer->gradient)].data);
  ++filling_;
  return Filling{.buffer = static_cast<int>(buffer - server.buffers.data()),
                 .from = {gradient + spec.offset, static_cast<size_t>(spec.count)},
                 .payload = buffer->memory + kPushHeaderBytes};
}

void PushTable::Filled(int index, int buffer_index, uint64_t payload_hash) {
  Server& server = at(index);
  PushBuffer& buffer = server.buffers[static_cast<size_t>(buffer_index)];
  --filling_;
  buffer.state = PushBuffer::State::kReady;
  buffer.payload_hash = payload_hash;
  if (buffer.attempt_serial != attempt_serial_) {
    Free(server, buffer);
  }
  DoneWith(buffer.gradient);
}

void PushTable::DoneWith(int index) {
  Gradient& gradient = gradients_[static_cast<size_t>(index)];
  --gradient.reading;
  if (--gradient.remaining == 0) {
    Finished(index);
  }
}

void PushTable::Finished(int index) {
  gradients_[static_cast<size_t>(index)].active = false;
  returns_.push_back(index);
}

// Ends the parts not being read; whoever reads the rest ends the gradient.
void PushTable::GiveUp(int index) {
  Gradient& gradient = gradients_[static_cast<size_t>(index)];
  gradient.remaining = gradient.reading;
  if (gradient.active && gradient.remaining == 0) {
    Finished(index);
  }
}

void PushTable::Withdraw(const void* data) {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (!gradients_[i].active || gradients_[i].data != data) {
      continue;
    }
    for (Server& server : servers_) {
      server.pending.erase(server.pending.begin(),
                           server.pending.begin() + static_cast<std::ptrdiff_t>(server.first));
      server.first = 0;
      std::erase_if(server.pending,
                    [&](const Pending& p) { return p.gradient == static_cast<int>(i); });
    }
    GiveUp(static_cast<int>(i));
  }
}

std::optional<PushTable::Return> PushTable::TakeReturn() {
  if (returns_.empty()) {
    return std::nullopt;
  }
  Gradient& gradient = gradients_[static_cast<size_t>(returns_.back())];
  returns_.pop_back();
  gradient.returned = true;
  return Return{.done = gradient.done, .unit = gradient.unit, .gradient = gradient.data};
}

std::optional<PushTable::Posting> PushTable::NextToPost(int index, const DataConnection& connection,
                                                        absl::Time now) {
  Server& server = at(index);
  while (options_.in_place && TakeBuffer(server, PushBuffer::State::kReady) != nullptr) {
  }
  const auto slot = std::find(server.slot_owner.begin(), server.slot_owner.end(), -1);
  if (slot == server.slot_owner.end()) {
    return std::nullopt;
  }
  // The oldest first, also after a reconnect.
  PushBuffer* next = nullptr;
  for (PushBuffer& buffer : server.buffers) {
    if (buffer.state == PushBuffer::State::kReady &&
        (next == nullptr || buffer.number < next->number)) {
      next = &buffer;
    }
  }
  if (next == nullptr) {
    return std::nullopt;
  }
  const plan::PartitionSpec& spec = layout_->partition(next->partition);
  next->state = PushBuffer::State::kPosted;
  next->seen = false;
  next->posted = now;
  next->slot = static_cast<int>(slot - server.slot_owner.begin());
  next->push_id = next_push_id_++;
  *slot = static_cast<int>(next - server.buffers.data());
  PushHeader header = {.magic = transport::kPushMagic,
                       .incarnation = options_.incarnation,
                       .generation = layout_->generation,
                       .step = next->step,
                       .attempt = next->attempt,
                       .key = next->contribution.key,
                       .partition = next->partition,
                       .dtype = static_cast<uint32_t>(options_.gradient_type),
                       .count = spec.count,
                       .push_id = next->push_id,
                       .payload_hash = next->payload_hash,
                       .flags = 0,
                       .reserved = {},
                       .header_hash = 0};
  transport::SealPushHeader(header);
  std::memcpy(next->memory, &header, sizeof(header));
  const int64_t element = SizeOf(options_.gradient_type);
  const int64_t bytes = spec.count * element;
  const std::byte* const payload =
      options_.in_place
          ? gradients_[static_cast<size_t>(next->gradient)].data + spec.offset * element
          : next->memory + kPushHeaderBytes;
  const int64_t offset = next->slot * connection.slot_bytes;
  const auto id = static_cast<uint64_t>(*slot) * 2;
  return Posting{.buffer = *slot,
                 .bytes = bytes,
                 .writes = {{{.id = id,
                              .region = connection.payloads_region,
                              .offset = offset + kPushHeaderBytes,
                              .from = {payload, static_cast<size_t>(bytes)}},
                             {.id = id + 1,
                              .region = connection.slots_region,
                              .offset = offset,
                              .from = {next->memory, static_cast<size_t>(kPushHeaderBytes)},
                              .ring = true,
                              .immediate = static_cast<uint32_t>(next->slot)}}}};
}

void PushTable::Unpost(int index, int buffer_index) {
  Server& server = at(index);
  PushBuffer& buffer = server.buffers[static_cast<size_t>(buffer_index)];
  LeaveSlot(server, buffer);
  buffer.state = PushBuffer::State::kReady;
}

PushTable::Outcome PushTable::OnAcknowledgement(int index, uint32_t slot,
                                                const DataConnection& connection, absl::Time now) {
  Server& server = at(index);
  if (slot >= server.slot_owner.size() || server.slot_owner[slot] < 0) {
    return {};
  }
  PushBuffer& buffer = server.buffers[static_cast<size_t>(server.slot_owner[slot])];
  const PushAcknowledgement answer =
      ReadAcknowledgement(connection.acknowledgements->bytes(), slot);
  return Answers(answer, buffer.push_id) ? Acknowledge(server, buffer, answer, now) : Outcome{};
}

std::vector<PushTable::Outcome> PushTable::Scan(int index, const DataConnection& connection,
                                                absl::Time now) {
  std::vector<Outcome> outcomes;
  Server& server = at(index);
  for (size_t slot = 0; slot < server.slot_owner.size(); ++slot) {
    if (server.slot_owner[slot] < 0) {
      continue;
    }
    PushBuffer& buffer = server.buffers[static_cast<size_t>(server.slot_owner[slot])];
    const PushAcknowledgement answer =
        ReadAcknowledgement(connection.acknowledgements->bytes(), slot);
    if (!Answers(answer, buffer.push_id)) {
      continue;
    }
    if (buffer.seen) {
      outcomes.push_back(Acknowledge(server, buffer, answer, now));
    }
    buffer.seen = true;
  }
  return outcomes;
}

PushTable::Outcome PushTable::Acknowledge(Server& server, PushBuffer& buffer,
                                          const PushAcknowledgement& answer, absl::Time now) {
  Outcome outcome{.completed = true,
                  .duplicate = answer.applied_before != 0,
                  .refused = absl::OkStatus(),
                  .took = now - buffer.posted};
  if (buffer.attempt_serial == attempt_serial_) {
    if (answer.code == 0) {
      ++server.acknowledged;
      --PackOf(buffer.contribution.pack).outstanding;
    } else {
      const plan::PartitionSpec& spec = layout_->partition(buffer.partition);
      outcome.refused = absl::Status(
          static_cast<absl::StatusCode>(answer.code),
          fmt::format("push of {} (partition {}, key {}, step {}, attempt {}, generation {}) "
                      "refused by {}: {}",
                      layout_->unit(spec.unit).name, spec.id, buffer.contribution.key, buffer.step,
                      buffer.attempt, layout_->generation, ServerName(layout_->writer_of(spec.id)),
                      absl::StatusCodeToString(static_cast<absl::StatusCode>(answer.code))));
    }
  }
  Free(server, buffer);
  return outcome;
}

void PushTable::LeaveSlot(Server& server, PushBuffer& buffer) {
  if (buffer.slot >= 0) {
    server.slot_owner[static_cast<size_t>(buffer.slot)] = -1;
  }
  buffer.slot = -1;
}

void PushTable::Free(Server& server, PushBuffer& buffer) {
  LeaveSlot(server, buffer);
  buffer.state = PushBuffer::State::kFree;
  if (options_.in_place) {
    DoneWith(buffer.gradient);
  }
}

int PushTable::Requeue(int index) {
  Server& server = at(index);
  int requeued = 0;
  for (PushBuffer& buffer : server.buffers) {
    if (buffer.state != PushBuffer::State::kPosted) {
      continue;
    }
    if (buffer.attempt_serial == attempt_serial_) {
      LeaveSlot(server, buffer);
      buffer.state = PushBuffer::State::kReady;
      ++requeued;
    } else {
      Free(server, buffer);
    }
  }
  return requeued;
}

bool PushTable::waits(const void* gradient) const {
  return std::any_of(gradients_.begin(), gradients_.end(),
                     [&](const Gradient& g) { return g.active && g.data == gradient; });
}

int64_t PushTable::outstanding(int index) const {
  const Server& server = at(index);
  const auto buffers =
      std::count_if(server.buffers.begin(), server.buffers.end(), [&](const PushBuffer& p) {
        return p.state != PushBuffer::State::kFree && p.attempt_serial == attempt_serial_;
      });
  return static_cast<int64_t>(server.pending.size() - server.first) + buffers;
}

int64_t PushTable::outstanding() const {
  int64_t total = 0;
  for (size_t i = 0; i < servers_.size(); ++i) {
    total += outstanding(static_cast<int>(i));
  }
  return total;
}

int64_t PushTable::in_flight(int index) const {
  const std::vector<int>& owners = at(index).slot_owner;
  return std::count_if(owners.begin(), owners.end(), [](int owner) { return owner >= 0; });
}

int64_t PushTable::bytes() const {
  int64_t total = 0;
  for (const Server& server : servers_) {
    total += server.buffer_bytes * static_cast<int64_t>(server.buffers.size());
  }
  return total;
}

std::string PushTable::Oldest() const {
  const auto name = [&](int partition, int64_t key) {
    return fmt::format("{} (partition {}, key {}) to {}",
                       layout_->unit(layout_->partition(partition).unit).name, partition, key,
                       ServerName(layout_->writer_of(partition)));
  };
  for (const Server& server : servers_) {
    for (const PushBuffer& buffer : server.buffers) {
      if (buffer.state != PushBuffer::State::kFree && buffer.attempt_serial == attempt_serial_) {
        return name(buffer.partition, buffer.contribution.key);
      }
    }
    if (waiting(server)) {
      const Pending& pending = server.pending[server.first];
      return name(pending.partition,
                  gradients_[static_cast<size_t>(pending.gradient)].contribution.key);
    }
  }
  return "nothing";
}

}  // namespace shoal::client
