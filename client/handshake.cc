#include "client/handshake.h"

#include <algorithm>

#include "common/bytes.h"
#include "common/logging.h"
#include "common/status.h"

namespace shoal::client {

using transport::kBufferAlignment;
using transport::kPushHeaderBytes;

std::string ServerName(int server) { return fmt::format("server-{}", server); }

struct Handshake::Offers {
  proto::ConnectRequest request;
  std::vector<std::unique_ptr<transport::Connector>> connectors;  // by transport; may be null
  std::vector<std::shared_ptr<transport::Region>> acknowledgements;
};

absl::StatusOr<std::unique_ptr<transport::Connector>> Handshake::OfferOver(
    size_t transport, transport::ConnectionOptions options, Offers& offers) {
  if (!options_.read_only) {
    SHOAL_ASSIGN_OR_RETURN(
        offers.acknowledgements[transport],
        transports_[transport]->Allocate(kBufferAlignment, transport::Access::kRemoteWrite));
    options.exposed.push_back(offers.acknowledgements[transport]);
  }
  return transports_[transport]->Offer(options);
}

absl::Status Handshake::MakeOffers(int server, const std::vector<bool>& excluded,
                                   absl::Duration timeout, Offers& offers) {
  offers.request.set_incarnation(options_.incarnation);
  offers.request.set_layout_version(transport::kDataLayoutVersion);
  offers.request.set_generation(layout_->generation);
  offers.request.set_read_only(options_.read_only);
  offers.request.set_client(options_.client);
  offers.connectors.resize(transports_.size());
  offers.acknowledgements.resize(transports_.size());
  absl::Status last = Unavailable("no transport is left to offer");
  for (size_t i = 0; i < transports_.size(); ++i) {
    if (excluded[i]) {
      continue;
    }
    transport::ConnectionOptions options;
    options.queue = queues_[i];
    options.peer = ServerName(server);
    options.handshake_timeout = timeout;
    options.max_outstanding = options_.max_outstanding;
    auto connector = OfferOver(i, std::move(options), offers);
    if (!connector.ok()) {
      LogWarning("{} cannot be offered to {}: {}", transports_[i]->name(), ServerName(server),
                 Message(connector.status()));
      last = connector.status();
      continue;
    }
    proto::TransportOffer* offer = offers.request.add_offers();
    offer->set_transport(std::string(transports_[i]->name()));
    offer->set_offer((*connector)->offer());
    offers.connectors[i] = *std::move(connector);
  }
  return offers.request.offers_size() == 0 ? last : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DataConnection>> Handshake::Connect(int server,
                                                                   std::vector<bool> excluded,
                                                                   absl::Duration timeout) {
  std::vector<size_t> not_completed;
  std::string excluded_because;
  while (true) {
    Offers offers;
    SHOAL_RETURN_IF_ERROR(MakeOffers(server, excluded, timeout, offers));
    SHOAL_ASSIGN_OR_RETURN(const proto::ConnectReply reply,
                           connector_->Connect(server, offers.request, timeout));
    const auto taken =
        std::find_if(transports_.begin(), transports_.end(),
                     [&](transport::Transport* t) { return t->name() == reply.transport(); });
    const auto index = static_cast<size_t>(taken - transports_.begin());
    if (taken == transports_.end() || offers.connectors[index] == nullptr) {
      return Internal("{} answered with transport '{}', which was not offered", ServerName(server),
                      reply.transport());
    }
    auto completed = offers.connectors[index]->Complete(reply.answer());
    if (!completed.ok()) {
      excluded[index] = true;
      not_completed.push_back(index);
      excluded_because = fmt::format("{}: {}", reply.transport(), Message(completed.status()));
      if (std::count(excluded.begin(), excluded.end(), false) == 0) {
        return completed.status();  // names the peer
      }
      continue;
    }
    auto connection = std::make_unique<DataConnection>();
    connection->connection = *std::move(completed);
    connection->transport = index;
    connection->acknowledgements = offers.acknowledgements[index];
    connection->not_completed = std::move(not_completed);
    connection->reason = excluded_because.empty() ? reply.reason() : excluded_because;
    SHOAL_RETURN_IF_ERROR(Check(server, reply, *connection));
    return connection;
  }
}

absl::Status Handshake::Check(int server, const proto::ConnectReply& reply,
                              DataConnection& connection) const {
  const std::string name = ServerName(server);
  const std::vector<int64_t> regions = connection.connection->remote_region_sizes();
  const auto region_bytes = [&](int32_t region) {
    return region >= 0 && static_cast<size_t>(region) < regions.size()
               ? regions[static_cast<size_t>(region)]
               : int64_t{-1};
  };
  if (reply.wire_type() != static_cast<uint32_t>(DType::kF32) &&
      reply.wire_type() != static_cast<uint32_t>(DType::kBF16)) {
    return Internal("{} serves weights in element type {}, which this client does not know", name,
                    reply.wire_type());
  }
  connection.wire_type = static_cast<DType>(reply.wire_type());
  connection.published = reply.version();
  connection.weights_region = reply.weights_region();
  SHOAL_RETURN_IF_ERROR(
      CheckLocations(server, reply, region_bytes(reply.weights_region()), connection));
  if (options_.read_only) {
    return absl::OkStatus();
  }
  connection.slots_region = reply.slots_region();
  connection.slots = std::min(reply.slots(), kMaxSlots);
  connection.slot_bytes = reply.slot_bytes();
  const int64_t needed =
      kPushHeaderBytes + layout_->largest_partition(server) * SizeOf(options_.gradient_type);
  if (connection.slots < 1 || connection.slot_bytes < needed) {
    return Internal(
        "{} granted {} slots of {} bytes; {} bytes are needed for its largest partition", name,
        reply.slots(), reply.slot_bytes(), needed);
  }
  const int64_t slots_region_bytes = region_bytes(reply.slots_region());
  if (slots_region_bytes < 0 || connection.slot_bytes > slots_region_bytes / connection.slots) {
    return Internal("{} granted {} slots of {} bytes in a region of {}", name, reply.slots(),
                    reply.slot_bytes(), slots_region_bytes);
  }
  return absl::OkStatus();
}

absl::Status Handshake::CheckLocations(int server, const proto::ConnectReply& reply,
                                       int64_t region_bytes, DataConnection& connection) const {
  const std::string name = ServerName(server);
  const auto partitions = static_cast<int64_t>(layout_->partitions.size());
  std::vector<bool> seen(layout_->partitions.size(), false);
  connection.locations.resize(layout_->partitions.size());
  const auto inside = [&](int64_t offset, int64_t bytes, int64_t alignment) {
    return offset >= 0 && offset % alignment == 0 && bytes <= region_bytes &&
           offset <= region_bytes - bytes;
  };
  for (const proto::PartitionLocation& location : reply.partitions()) {
    if (location.partition() < 0 || location.partition() >= partitions) {
      return Internal("{} answered with partition {}; the job has {}", name, location.partition(),
                      partitions);
    }
    const int64_t bytes =
        layout_->partition(location.partition()).count * SizeOf(connection.wire_type);
    if (!inside(location.header(), sizeof(transport::PartitionHeader), 64) ||
        !inside(location.even(), bytes, kBufferAlignment) ||
        !inside(location.odd(), bytes, kBufferAlignment)) {
      return Internal("{} puts partition {} outside of its weights region of {} bytes", name,
                      location.partition(), region_bytes);
    }
    seen[static_cast<size_t>(location.partition())] = true;
    connection.locations[static_cast<size_t>(location.partition())] = {
        .header = location.header(), .buffer = {location.even(), location.odd()}};
  }
  for (int64_t id = 0; id < partitions; ++id) {
    if (layout_->server_of(static_cast<int>(id)) == server && !seen[static_cast<size_t>(id)]) {
      return Internal(
          "{} does not serve partition {}, which generation {} of the shard map puts there", name,
          id, layout_->generation);
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::client
