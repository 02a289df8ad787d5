#include "client/server_connection.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::client {

using transport::kBufferAlignment;
using transport::kPushHeaderBytes;

namespace {

// -1: there is no such region.
int64_t BytesOf(const std::vector<int64_t>& regions, int32_t region) {
  return region >= 0 && static_cast<size_t>(region) < regions.size()
             ? regions[static_cast<size_t>(region)]
             : int64_t{-1};
}

}  // namespace

std::string ServerName(int server) { return fmt::format("server-{}", server); }

absl::StatusOr<std::unique_ptr<DataConnection>> ServerConnections::Connect(
    int server, std::vector<bool> left_out, absl::Duration timeout) {
  auto connection = std::make_unique<DataConnection>();
  std::vector<Offer> offers(transports_.size());
  const auto offer = [&](size_t i) -> absl::StatusOr<std::string> {
    SHOAL_ASSIGN_OR_RETURN(offers[i], OfferOver(i, server, timeout));
    return offers[i].connector->offer();
  };
  proto::ConnectReply reply;
  const auto ask = [&](const std::vector<transport::NamedOffer>& named)
      -> absl::StatusOr<transport::TakenOffer> {
    SHOAL_ASSIGN_OR_RETURN(reply, servers_->Connect(server, RequestWith(server, named), timeout));
    return transport::TakenOffer{reply.transport(), reply.answer(), reply.reason()};
  };
  const auto complete_one = [&](size_t i, const std::string& answer) -> absl::Status {
    SHOAL_ASSIGN_OR_RETURN(connection->connection, offers[i].connector->Complete(answer));
    connection->acknowledgements = offers[i].acknowledgements;
    return absl::OkStatus();
  };
  const auto complete = [&](size_t i, const std::string& answer) -> absl::Status {
    const absl::Status completed = complete_one(i, answer);
    // A late or lost server says nothing about its GPU: ask again as before.
    if (completed.ok() || reply.gpu().empty() || absl::IsUnavailable(completed) ||
        absl::IsDeadlineExceeded(completed)) {
      return completed;
    }
    // Visible, yet it cannot be opened: other container, or GPUs that cannot reach each other.
    LogWarning("{}: its memory in {} is done without: {}", ServerName(server), reply.gpu(),
               Message(completed));
    out_of_reach_[static_cast<size_t>(server)] = true;
    transport::NamedOffer again{.transport = std::string(transports_[i]->name())};
    SHOAL_ASSIGN_OR_RETURN(again.offer, offer(i));
    SHOAL_ASSIGN_OR_RETURN(const transport::TakenOffer taken, ask({again}));
    return complete_one(i, taken.answer);
  };
  SHOAL_ASSIGN_OR_RETURN(transport::Negotiated negotiated,
                         transport::Negotiate({.peer = ServerName(server),
                                               .transports = transport::NamesOf(transports_),
                                               .left_out = std::move(left_out),
                                               .offer = offer,
                                               .ask = ask,
                                               .complete = complete}));
  connection->transport = negotiated.transport;
  connection->not_completed = std::move(negotiated.not_completed);
  connection->reason = std::move(negotiated.reason);
  SHOAL_RETURN_IF_ERROR(Check(server, reply, *connection));
  return connection;
}

bool ServerConnections::WantsGpuMemory(int server) const {
  return (options_.weights_in_gpu || options_.payloads_in_gpu) &&
         !out_of_reach_[static_cast<size_t>(server)];
}

absl::StatusOr<ServerConnections::Offer> ServerConnections::OfferOver(size_t transport, int server,
                                                                      absl::Duration timeout) {
  Offer offer;
  transport::ConnectionOptions options = {.queue = queues_[transport],
                                          .peer = ServerName(server),
                                          .handshake_timeout = timeout,
                                          .max_outstanding = options_.max_outstanding,
                                          .opens_gpu_memory = WantsGpuMemory(server)};
  if (!options_.read_only) {
    SHOAL_ASSIGN_OR_RETURN(
        offer.acknowledgements,
        transports_[transport]->Allocate(kBufferAlignment, transport::Access::kRemoteWrite));
    options.exposed.push_back(offer.acknowledgements);
  }
  SHOAL_ASSIGN_OR_RETURN(offer.connector, transports_[transport]->Offer(options));
  return offer;
}

proto::ConnectRequest ServerConnections::RequestWith(
    int server, const std::vector<transport::NamedOffer>& offers) const {
  proto::ConnectRequest request;
  request.set_job_id(options_.job_id);
  request.set_incarnation(options_.incarnation);
  request.set_layout_version(transport::kDataLayoutVersion);
  request.set_generation(layout_->generation);
  request.set_read_only(options_.read_only);
  request.set_client(options_.client);
  transport::WriteOffers(offers, *request.mutable_offers());
  if (!WantsGpuMemory(server)) {
    return request;
  }
  for (const transport::Transport* transport : transports_) {
    const std::vector<std::string>& gpus = transport->capabilities().opens_gpus;
    request.mutable_gpus()->Add(gpus.begin(), gpus.end());
  }
  request.set_weights_in_gpu(options_.weights_in_gpu);
  request.set_payloads_in_gpu(options_.payloads_in_gpu);
  return request;
}

absl::Status ServerConnections::Check(int server, const proto::ConnectReply& reply,
                                      DataConnection& connection) const {
  const std::string name = ServerName(server);
  const std::vector<int64_t> regions = connection.connection->remote_region_sizes();
  if (regions.empty() && (reply.extents_size() > 0 || !options_.read_only)) {
    return Unavailable("{} closed the connection as soon as it was made", name);
  }
  if (reply.wire_type() != static_cast<uint32_t>(DType::kF32) &&
      reply.wire_type() != static_cast<uint32_t>(DType::kBF16)) {
    return Internal("{} serves weights in element type {}, which this client does not know", name,
                    reply.wire_type());
  }
  connection.wire_type = static_cast<DType>(reply.wire_type());
  connection.published = reply.version();
  connection.gpu = reply.gpu();
  SHOAL_RETURN_IF_ERROR(CheckLocations(server, reply, regions, connection));
  if (options_.read_only) {
    return absl::OkStatus();
  }
  connection.slots_region = reply.slots_region();
  connection.payloads_region = reply.payloads_region();
  connection.slots = std::min(reply.slots(), kMaxSlots);
  connection.slot_bytes = reply.slot_bytes();
  const int64_t needed =
      kPushHeaderBytes + layout_->largest_partition() * SizeOf(options_.gradient_type);
  if (connection.slots < 1 || connection.slot_bytes < needed ||
      connection.slot_bytes % transport::kLayoutAlignment != 0) {
    return Internal(
        "{} granted {} slots of {} bytes; {} bytes are needed for the largest partition", name,
        reply.slots(), reply.slot_bytes(), needed);
  }
  const int64_t slots_region_bytes =
      std::min(BytesOf(regions, reply.slots_region()), BytesOf(regions, reply.payloads_region()));
  if (slots_region_bytes < 0 || connection.slot_bytes > slots_region_bytes / connection.slots) {
    return Internal("{} granted {} slots of {} bytes in a region of {}", name, reply.slots(),
                    reply.slot_bytes(), slots_region_bytes);
  }
  return absl::OkStatus();
}

absl::Status ServerConnections::CheckLocations(int server, const proto::ConnectReply& reply,
                                               const std::vector<int64_t>& regions,
                                               DataConnection& connection) const {
  const std::string name = ServerName(server);
  const auto partitions = static_cast<int64_t>(layout_->partitions.size());
  std::vector<bool> seen(layout_->partitions.size(), false);
  connection.locations.resize(layout_->partitions.size());
  const auto inside = [](int64_t offset, int64_t bytes, int64_t region_bytes) {
    return offset >= 0 && offset % transport::kLayoutAlignment == 0 && bytes <= region_bytes &&
           offset <= region_bytes - bytes;
  };
  for (const proto::PartitionLocation& location : reply.partitions()) {
    if (location.partition() < 0 || location.partition() >= partitions) {
      return Internal("{} answered with partition {}; the job has {}", name, location.partition(),
                      partitions);
    }
    if (location.extent() < 0 || location.extent() >= reply.extents_size()) {
      return Internal("{} puts partition {} into extent {} of {}", name, location.partition(),
                      location.extent(), reply.extents_size());
    }
    const proto::Extent& extent = reply.extents(location.extent());
    const int64_t headers_bytes = BytesOf(regions, extent.headers_region());
    const int64_t weights_bytes = BytesOf(regions, extent.weights_region());
    const int64_t bytes = layout_->partition(location.partition()).wire_bytes(connection.wire_type);
    if (!inside(location.header(), sizeof(transport::PartitionHeader), headers_bytes) ||
        !inside(location.even(), bytes, weights_bytes) ||
        !inside(location.odd(), bytes, weights_bytes)) {
      return Internal("{} puts partition {} outside of its weights region of {} bytes", name,
                      location.partition(), weights_bytes);
    }
    seen[static_cast<size_t>(location.partition())] = true;
    connection.locations[static_cast<size_t>(location.partition())] = {
        .headers_region = extent.headers_region(),
        .weights_region = extent.weights_region(),
        .header = location.header(),
        .buffer = {location.even(), location.odd()}};
    connection.weights_in_gpu =
        connection.weights_in_gpu || extent.weights_region() != extent.headers_region();
  }
  for (int64_t id = 0; id < partitions; ++id) {
    const bool needed = layout_->writer_of(static_cast<int>(id)) == server ||
                        layout_->reader_of(static_cast<int>(id)) == server;
    if (needed && !seen[static_cast<size_t>(id)]) {
      return Internal(
          "{} does not serve partition {}, which generation {} of the shard map puts there", name,
          id, layout_->generation);
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::client
