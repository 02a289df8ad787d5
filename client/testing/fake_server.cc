#include "client/testing/fake_server.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "core/base/bf16.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/push_header.h"
#include "core/transport/shared_words.h"

namespace shoal::client {

using transport::kBufferAlignment;
using transport::PartitionHeader;
using transport::PushAcknowledgement;
using transport::PushHeader;

FakeServer::FakeServer(const Options& options, const Layout* layout,
                       transport::Transport* transport)
    : options_(options), layout_(layout), transport_(transport), sums_(layout->partitions.size()) {
  int64_t bytes = 0;
  for (const plan::PartitionSpec& partition : layout_->partitions) {
    offsets_.push_back(bytes);
    sums_[static_cast<size_t>(partition.id)].resize(static_cast<size_t>(partition.count));
    const int64_t buffer = RoundUp(partition.wire_bytes(options_.wire_type), kBufferAlignment);
    if (HasPlace(partition.id)) {
      bytes += kBufferAlignment + 2 * buffer;
    }
  }
  slot_bytes_ = RoundUp(
      transport::kPushHeaderBytes + layout_->largest_partition() * SizeOf(options_.gradient_type),
      kBufferAlignment);
  weights_ =
      *transport_->Allocate(std::max(bytes, kBufferAlignment), transport::Access::kRemoteRead);
  queue_ = *transport_->CreateQueue();
  thread_ = std::thread([this] { Run(); });
}

FakeServer::~FakeServer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  queue_->Wake();
  thread_.join();
  absl::MutexLock lock(&mutex_);
  clients_.clear();
}

float FakeServer::Weight(int64_t version, int unit, int64_t element) {
  // Exact in bf16 too: eight bits of mantissa.
  return static_cast<float>((version * 7 + unit * 31 + element * 3) % 251) - 125.0F;
}

bool FakeServer::Holds(int partition) const {
  const plan::Holders& holders = layout_->holders[static_cast<size_t>(partition)];
  return std::ranges::find(holders, options_.index) != holders.end();
}

bool FakeServer::HasPlace(int partition) const { return options_.reserves_all || Holds(partition); }

int64_t FakeServer::HeaderOffset(int partition) const {
  return offsets_[static_cast<size_t>(partition)];
}

int64_t FakeServer::BufferOffset(int partition, int64_t version) const {
  const int64_t bytes =
      RoundUp(layout_->partition(partition).wire_bytes(options_.wire_type), kBufferAlignment);
  return HeaderOffset(partition) + kBufferAlignment + (version & 1) * bytes;
}

// Clients read while this writes, and detect it by the header. The protocol allows this race, so
// ThreadSanitizer must ignore it here and in what this calls.
__attribute__((no_sanitize("thread"))) void FakeServer::Publish(int64_t version) {
  for (const plan::PartitionSpec& partition : layout_->partitions) {
    if (!Holds(partition.id) || (partition.frozen && version > 0)) {
      continue;
    }
    SetWriting(partition.id, version, true);
    Write(partition, version, weights_->bytes().data() + BufferOffset(partition.id, version));
    SetWriting(partition.id, version, false);
  }
  absl::MutexLock lock(&mutex_);
  version_ = version;
}

__attribute__((no_sanitize("thread"))) void FakeServer::Write(const plan::PartitionSpec& partition,
                                                              int64_t version,
                                                              std::byte* to) const {
  if (partition.nf4_bytes > 0) {
    const auto weights = [version](int unit, int64_t offset, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = Weight(version, unit, offset + static_cast<int64_t>(i));
      }
      return absl::OkStatus();
    };
    SHOAL_CHECK(layout_->nf4.at(partition.id).partition.Encode(weights, to).ok());
    return;
  }
  for (int64_t i = 0; i < partition.count; ++i) {
    const float value = Weight(version, partition.unit, partition.offset + i);
    if (options_.wire_type == DType::kF32) {
      reinterpret_cast<float*>(to)[i] = value;
    } else {
      reinterpret_cast<BFloat16*>(to)[i] = BFloat16(value);
    }
  }
}

__attribute__((no_sanitize("thread"))) void FakeServer::SetWriting(int partition, int64_t version,
                                                                   bool writing) {
  auto* header =
      reinterpret_cast<PartitionHeader*>(weights_->bytes().data() + HeaderOffset(partition));
  const auto buffer = static_cast<size_t>(version & 1);
  std::atomic_thread_fence(std::memory_order_release);
  header->version[buffer] = static_cast<uint64_t>(version);
  header->sequence[buffer] = (header->sequence[buffer] & ~uint64_t{1}) + (writing ? 1 : 2);
}

absl::StatusOr<proto::ConnectReply> FakeServer::Connect(const proto::ConnectRequest& request) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(refuse_);
  if (request.job_id() != options_.job_id) {
    return NotFound("{} is not here", request.job_id());
  }
  for (const proto::TransportOffer& offer : request.offers()) {
    if (offer.transport() != transport_->name()) {
      continue;
    }
    auto client = std::make_unique<Client>();
    client->incarnation = request.incarnation();
    transport::ConnectionOptions options;
    options.queue = queue_.get();
    options.peer = request.client();
    options.exposed = {weights_};
    if (!request.read_only()) {
      SHOAL_ASSIGN_OR_RETURN(client->slots, transport_->Allocate(options_.slots * slot_bytes_,
                                                                 transport::Access::kRemoteWrite));
      SHOAL_ASSIGN_OR_RETURN(client->answers,
                             transport_->Allocate(kBufferAlignment, transport::Access::kLocal));
      client->answered.resize(static_cast<size_t>(options_.slots), 0);
      options.exposed.push_back(client->slots);
    }
    SHOAL_ASSIGN_OR_RETURN(auto acceptance, transport_->Accept(offer.offer(), options));
    client->connection = std::move(acceptance.connection);
    proto::ConnectReply reply;
    reply.set_transport(offer.transport());
    reply.set_answer(acceptance.answer);
    reply.add_extents();
    reply.set_slots_region(request.read_only() ? -1 : 1);
    reply.set_payloads_region(reply.slots_region());
    reply.set_slots(request.read_only() ? 0 : options_.slots);
    reply.set_slot_bytes(slot_bytes_);
    reply.set_wire_type(static_cast<uint32_t>(options_.wire_type));
    reply.set_version(version_);
    if (offer.transport() != request.offers(0).transport()) {
      reply.set_reason("not enabled at the server");
    }
    for (const plan::PartitionSpec& partition : layout_->partitions) {
      if (HasPlace(partition.id)) {
        proto::PartitionLocation* location = reply.add_partitions();
        location->set_partition(partition.id);
        location->set_header(HeaderOffset(partition.id));
        location->set_even(BufferOffset(partition.id, 0));
        location->set_odd(BufferOffset(partition.id, 1));
      }
    }
    clients_.push_back(std::move(client));
    return reply;
  }
  return FailedPrecondition("no transport in common");
}

void FakeServer::RefuseConnections(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  refuse_ = why;
}

void FakeServer::BreakConnections() {
  absl::MutexLock lock(&mutex_);
  for (const auto& client : clients_) {
    client->connection->Close();
  }
}

void FakeServer::HoldAcknowledgements(bool hold) {
  {
    absl::MutexLock lock(&mutex_);
    hold_ = hold;
  }
  queue_->Wake();
}

void FakeServer::OpenAttempt(int64_t step, int64_t attempt) {
  absl::MutexLock lock(&mutex_);
  step_ = step;
  attempt_ = attempt;
  applied_.clear();
  pushes_ = 0;
  duplicates_ = 0;
  for (std::vector<int64_t>& sum : sums_) {
    std::fill(sum.begin(), sum.end(), 0);
  }
}

std::vector<int64_t> FakeServer::Sum(int unit) const {
  absl::MutexLock lock(&mutex_);
  std::vector<int64_t> all(static_cast<size_t>(layout_->unit(unit).count), 0);
  for (const int id : layout_->unit(unit).partitions) {
    const std::vector<int64_t>& sum = sums_[static_cast<size_t>(id)];
    std::copy(sum.begin(), sum.end(),
              all.begin() + static_cast<std::ptrdiff_t>(layout_->partition(id).offset));
  }
  return all;
}

int64_t FakeServer::pushes() const {
  absl::MutexLock lock(&mutex_);
  return pushes_;
}
int64_t FakeServer::duplicates() const {
  absl::MutexLock lock(&mutex_);
  return duplicates_;
}
int64_t FakeServer::most_in_flight() const {
  absl::MutexLock lock(&mutex_);
  return most_in_flight_;
}

void FakeServer::Run() {
  std::array<transport::Event, 32> events;
  while (true) {
    const size_t count = queue_->Poll(events);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) {
        return;
      }
      for (size_t i = 0; i < count; ++i) {
        for (const auto& client : clients_) {
          client->closed = client->closed || (events[i].kind == transport::Event::Kind::kClosed &&
                                              events[i].connection == client->connection->id());
        }
      }
      std::erase_if(clients_, [](const auto& client) { return client->closed; });
      // Doorbells are hints: scans all slots, whatever rang.
      for (const auto& client : clients_) {
        int64_t unanswered = 0;
        for (size_t slot = 0; slot < client->answered.size(); ++slot) {
          PushHeader header;
          std::memcpy(&header, client->slots->bytes().data() + slot * slot_bytes_, sizeof(header));
          unanswered +=
              transport::IsWhole(header) && header.push_id != client->answered[slot] ? 1 : 0;
        }
        most_in_flight_ = std::max(most_in_flight_, unanswered);
        for (size_t slot = 0; slot < client->answered.size() && !hold_; ++slot) {
          Look(*client, slot);
        }
      }
    }
    queue_->Wait(absl::Milliseconds(20));
  }
}

void FakeServer::Look(Client& client, size_t slot) {
  const std::byte* at = client.slots->bytes().data() + slot * static_cast<size_t>(slot_bytes_);
  const auto header = transport::CopyShared<PushHeader>(at);
  if (!transport::IsWhole(header) || header.push_id == client.answered[slot]) {
    return;
  }
  client.answered[slot] = header.push_id;
  const PushAcknowledgement answer = Apply(client, header, at + transport::kPushHeaderBytes);
  std::byte* out = client.answers->bytes().data() + slot * sizeof(answer);
  std::memcpy(out, &answer, sizeof(answer));
  const transport::WriteOperation write = {.id = slot,
                                           .region = 0,
                                           .offset = static_cast<int64_t>(slot * sizeof(answer)),
                                           .from = {out, sizeof(answer)},
                                           .ring = true,
                                           .immediate = static_cast<uint32_t>(slot)};
  client.connection->PostWrites(std::span(&write, 1)).IgnoreError();  // the client sends it again
}

PushAcknowledgement FakeServer::Apply(const Client& client, const PushHeader& header,
                                      const std::byte* payload) {
  PushAcknowledgement answer = {.push_id = header.push_id, .code = 0, .applied_before = 0};
  const bool known = header.partition >= 0 &&
                     static_cast<size_t>(header.partition) < layout_->partitions.size() &&
                     layout_->writer_of(header.partition) == options_.index;
  if (!known || header.incarnation != client.incarnation ||
      header.count != layout_->partition(header.partition).count ||
      header.dtype != static_cast<uint32_t>(options_.gradient_type) ||
      !transport::IsKnown(header)) {
    answer.code = static_cast<int32_t>(absl::StatusCode::kInvalidArgument);
    return answer;
  }
  if (header.step != step_ || header.attempt != attempt_ ||
      header.generation != layout_->generation) {
    answer.code = static_cast<int32_t>(absl::StatusCode::kFailedPrecondition);
    return answer;
  }
  if (!applied_.insert({header.partition, header.key}).second) {
    ++duplicates_;
    answer.applied_before = 1;
    return answer;
  }
  ++pushes_;
  std::vector<int64_t>& sum = sums_[static_cast<size_t>(header.partition)];
  for (size_t i = 0; i < sum.size(); ++i) {
    const float value = options_.gradient_type == DType::kF32
                            ? reinterpret_cast<const float*>(payload)[i]
                            : static_cast<float>(reinterpret_cast<const BFloat16*>(payload)[i]);
    sum[i] += std::llround(value);
  }
  return answer;
}

absl::StatusOr<proto::ConnectReply> FakeServers::Connect(int server,
                                                         const proto::ConnectRequest& request,
                                                         absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    if (hold_) {
      ++held_;
      mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), timeout);
    }
    if (cancelled_) {
      return absl::CancelledError("the call was cancelled");
    }
    if (hold_) {
      return absl::DeadlineExceededError("the call was not answered");
    }
  }
  return servers_[static_cast<size_t>(server)]->Connect(request);
}

void FakeServers::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
}

void FakeServers::Hold() {
  absl::MutexLock lock(&mutex_);
  hold_ = true;
}

int FakeServers::held() const {
  absl::MutexLock lock(&mutex_);
  return held_;
}

}  // namespace shoal::client
