#include "server/service/testing/client.h"

#include <algorithm>
#include <cstring>

#include "absl/time/clock.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/push_header.h"

namespace shoal::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(5);
constexpr int64_t kReadBuffer = int64_t{1} << 20;

}  // namespace

TestingClient::TestingClient(ParameterService* service, transport::Transport* transport,
                             uint64_t incarnation, int64_t generation, const std::string& name,
                             const std::string& job_id)
    : service_(service),
      transport_(transport),
      incarnation_(incarnation),
      generation_(generation),
      name_(name.empty() ? fmt::format("worker-{}", incarnation) : name),
      job_id_(job_id) {
  queue_ = *transport_->CreateQueue();
  acknowledgements_ =
      *transport_->Allocate(transport::kBufferAlignment, transport::Access::kRemoteWrite);
  destination_ = *transport_->Allocate(kReadBuffer, transport::Access::kLocal);
}

TestingClient::~TestingClient() {
  if (connection_ != nullptr) {
    connection_->Close();
  }
}

absl::Status TestingClient::Connect(bool read_only, bool in_gpu) {
  connection_.reset();
  Pump();
  closed_ = false;
  under_way_.clear();
  std::memset(acknowledgements_->bytes().data(), 0, acknowledgements_->bytes().size());
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Connector> connector,
                         transport_->Offer({.queue = queue_.get(),
                                            .exposed = {acknowledgements_},
                                            .peer = "server",
                                            .opens_gpu_memory = in_gpu}));
  proto::ConnectRequest request;
  request.set_job_id(job_id_);
  request.set_incarnation(incarnation_);
  request.set_layout_version(transport::kDataLayoutVersion);
  request.set_generation(generation_);
  request.set_read_only(read_only);
  request.set_client(name_);
  if (in_gpu) {
    const std::vector<std::string>& gpus = transport_->capabilities().opens_gpus;
    request.mutable_gpus()->Add(gpus.begin(), gpus.end());
    request.set_weights_in_gpu(true);
    request.set_payloads_in_gpu(true);
  }
  proto::TransportOffer& offer = *request.add_offers();
  offer.set_transport(std::string(transport_->name()));
  offer.set_offer(connector->offer());
  SHOAL_ASSIGN_OR_RETURN(granted_, service_->Connect(request));
  SHOAL_ASSIGN_OR_RETURN(connection_, connector->Complete(granted_.answer()));
  for (const proto::PartitionLocation& location : granted_.partitions()) {
    locations_[location.partition()] = location;
  }
  if (!read_only) {
    SHOAL_ASSIGN_OR_RETURN(source_, transport_->Allocate(granted_.slots() * granted_.slot_bytes(),
                                                         transport::Access::kLocal));
  }
  return absl::OkStatus();
}

transport::PushHeader TestingClient::Header(const Push& push) {
  transport::PushHeader header = {};
  header.magic = transport::kPushMagic;
  header.incarnation = incarnation_;
  header.generation = generation_;
  header.step = push.step;
  header.attempt = push.attempt;
  header.key = push.key > 0 ? push.key : KeyOf(incarnation_, push.sequence);
  header.partition = push.partition;
  header.dtype = static_cast<uint32_t>(DType::kF32);
  header.count = static_cast<int64_t>(push.gradient.size());
  header.push_id = next_push_id_++;
  if (push.verify) {
    header.payload_hash = transport::PayloadHash(std::as_bytes(std::span(push.gradient)));
  }
  transport::SealPushHeader(header);
  return header;
}

void TestingClient::Write(int64_t slot, const transport::PushHeader& header,
                          const std::vector<float>& gradient, bool ring) {
  const int64_t offset = slot * granted_.slot_bytes();
  std::byte* const source = source_->bytes().data() + offset;
  const size_t payload = gradient.size() * sizeof(float);
  std::memcpy(source, &header, sizeof(header));
  std::copy_n(reinterpret_cast<const std::byte*>(gradient.data()), payload,
              source + sizeof(header));
  const transport::WriteOperation writes[] = {
      {.id = next_operation_++,
       .region = granted_.payloads_region(),
       .offset = offset + static_cast<int64_t>(sizeof(header)),
       .from = {source + sizeof(header), payload}},
      {.id = next_operation_++,
       .region = granted_.slots_region(),
       .offset = offset,
       .from = {source, sizeof(header)},
       .ring = ring,
       .immediate = static_cast<uint32_t>(slot)}};
  if (connection_->PostWrites(writes).ok()) {
    under_way_.insert({writes[0].id, writes[1].id});
    WaitForWrites();
  }
}

void TestingClient::WriteBytes(int64_t slot, const std::string& bytes, bool ring) {
  std::byte* const source = source_->bytes().data() + slot * granted_.slot_bytes();
  std::memcpy(source, bytes.data(), bytes.size());
  const transport::WriteOperation write = {.id = next_operation_++,
                                           .region = granted_.slots_region(),
                                           .offset = slot * granted_.slot_bytes(),
                                           .from = {source, bytes.size()},
                                           .ring = ring,
                                           .immediate = static_cast<uint32_t>(slot)};
  if (connection_->PostWrites({&write, 1}).ok()) {
    under_way_.insert(write.id);
    WaitForWrites();
  }
}

void TestingClient::Ring(uint32_t immediate) {
  const transport::WriteOperation write = {.id = next_operation_++,
                                           .region = granted_.slots_region(),
                                           .ring = true,
                                           .immediate = immediate};
  if (connection_->PostWrites({&write, 1}).ok()) {
    under_way_.insert(write.id);
    WaitForWrites();
  }
}

uint64_t TestingClient::Send(int64_t slot, const Push& push) {
  const transport::PushHeader header = Header(push);
  Write(slot, header, push.gradient, push.ring);
  return header.push_id;
}

std::optional<TestingClient::Answer> TestingClient::Poll(int64_t slot, uint64_t push_id) {
  Pump();
  transport::PushAcknowledgement acknowledgement;
  std::memcpy(
      &acknowledgement,
      acknowledgements_->bytes().data() + slot * static_cast<int64_t>(sizeof(acknowledgement)),
      sizeof(acknowledgement));
  if (acknowledgement.push_id != push_id) {
    return std::nullopt;
  }
  return Answer{.code = static_cast<absl::StatusCode>(acknowledgement.code),
                .applied_before = acknowledgement.applied_before != 0};
}

std::optional<TestingClient::Answer> TestingClient::WaitFor(int64_t slot, uint64_t push_id) {
  for (const absl::Time deadline = absl::Now() + kPatience; absl::Now() < deadline && !closed_;) {
    if (const auto answer = Poll(slot, push_id); answer.has_value()) {
      return answer;
    }
    queue_->Wait(absl::Milliseconds(2));
  }
  return std::nullopt;
}

std::optional<TestingClient::Answer> TestingClient::SendAndWait(const Push& push) {
  return WaitFor(0, Send(0, push));
}

absl::StatusOr<std::vector<std::byte>> TestingClient::Read(int partition, int64_t version,
                                                           int64_t bytes) {
  const proto::PartitionLocation& location = locations_.at(partition);
  const proto::Extent& extent = granted_.extents(location.extent());
  SHOAL_CHECK(bytes + 64 <= kReadBuffer);
  const auto read = [&](int region, int64_t offset, std::span<std::byte> into) {
    const transport::ReadOperation operation = {
        .id = next_operation_++, .region = region, .offset = offset, .into = into};
    const absl::Status status = connection_->PostReads({&operation, 1});
    if (status.ok()) {
      under_way_.insert(operation.id);
      WaitForWrites();
    }
    return status;
  };
  const std::span<std::byte> data = destination_->bytes().subspan(64, static_cast<size_t>(bytes));
  SHOAL_RETURN_IF_ERROR(
      read(extent.weights_region(), version % 2 == 0 ? location.even() : location.odd(), data));
  SHOAL_RETURN_IF_ERROR(
      read(extent.headers_region(), location.header(), destination_->bytes().subspan(0, 64)));
  transport::PartitionHeader header;
  std::memcpy(&header, destination_->bytes().data(), sizeof(header));
  if (header.version[version % 2] != static_cast<uint64_t>(version) ||
      header.sequence[version % 2] % 2 != 0) {
    return Aborted("partition {} has version {}, not {}", partition, header.version[version % 2],
                   version);
  }
  return std::vector<std::byte>(data.begin(), data.end());
}

void TestingClient::Pump() {
  transport::Event events[32];
  for (size_t count = queue_->Poll(events); count > 0; count = queue_->Poll(events)) {
    for (size_t i = 0; i < count; ++i) {
      if (connection_ == nullptr || events[i].connection != connection_->id()) {
        continue;
      }
      if (events[i].kind == transport::Event::Kind::kClosed) {
        closed_ = true;
      } else if (events[i].kind != transport::Event::Kind::kDoorbell) {
        under_way_.erase(events[i].operation);
      }
    }
  }
}

void TestingClient::WaitForWrites() {
  for (const absl::Time deadline = absl::Now() + kPatience;
       !under_way_.empty() && !closed_ && absl::Now() < deadline;) {
    Pump();
    if (!under_way_.empty()) {
      queue_->Wait(absl::Milliseconds(2));
    }
  }
}

}  // namespace shoal::server
