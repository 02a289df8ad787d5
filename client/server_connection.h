// Makes a data connection to a server: sends offers by preference in one Connect call, of which the
// server takes one, and checks its answer before anything relies on it.
//
// Called from one thread at a time (the client's creator, then its reconnect thread).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/server_client.h"
#include "client/unit_layout.h"
#include "core/base/dtype.h"
#include "core/transport/data_layout.h"
#include "core/transport/negotiate.h"
#include "core/transport/transport.h"

namespace shoal::client {

// A connection and what the server granted on it, checked.
struct DataConnection {
  struct Location {
    int headers_region = -1;  // it has none
    int weights_region = -1;
    int64_t header = 0;  // byte offsets in those
    int64_t buffer[2] = {0, 0};
  };

  size_t transport = 0;               // index into the transports offered
  std::string reason;                 // why not the first transport; empty if it is that
  std::vector<size_t> not_completed;  // taken by the server, but failed on this side
  bool weights_in_gpu = false;        // some
  int slots_region = -1;
  int payloads_region = -1;
  std::string gpu;    // the server's, if it holds weights or payloads; empty: host
  int64_t slots = 0;  // credits; 0 for a read-only client
  int64_t slot_bytes = 0;
  DType wire_type = DType::kF32;
  std::vector<Location> locations;  // by partition id; of what this server has, or is to get
  int64_t published = 0;            // version, when the connection was made
  std::shared_ptr<transport::Region> acknowledgements;  // a PushAcknowledgement per slot
  std::unique_ptr<transport::Connection> connection;    // last: destroyed first

  bool payloads_in_gpu() const { return payloads_region != slots_region; }
};

// Most credits used: acknowledgements of one server fill a page.
inline constexpr int64_t kMaxSlots =
    transport::kBufferAlignment / static_cast<int64_t>(sizeof(transport::PushAcknowledgement));

class ServerConnections {
 public:
  struct Options {
    std::string job_id;
    uint64_t incarnation = 0;
    std::string client;  // a name for messages: "worker-1"
    bool read_only = false;
    DType gradient_type = DType::kF32;
    int64_t max_outstanding = 1024;  // per kind of operation
    // Ask for memory of servers' GPUs, used if it can be had and opened.
    bool weights_in_gpu = false;
    bool payloads_in_gpu = false;
  };

  ServerConnections(const Options& options, const Layout* layout, ServerClient* server_client,
                    std::vector<transport::Transport*> transports)
      : options_(options),
        layout_(layout),
        servers_(server_client),
        transports_(std::move(transports)),
        out_of_reach_(static_cast<size_t>(layout->servers), false) {}

  // Queues for the connections' events, one per transport in their order.
  void set_queues(std::vector<transport::EventQueue*> queues) { queues_ = std::move(queues); }

  // Tries once, within `timeout`, offering all transports but those `left_out`. If the one that the
  // server took cannot be completed, asks again without it; if only memory of the server's GPU
  // cannot be opened, first asks for the same one without that. Errors name the server.
  absl::StatusOr<std::unique_ptr<DataConnection>> Connect(int server, std::vector<bool> left_out,
                                                          absl::Duration timeout);

 private:
  // An offer over one transport.
  struct Offer {
    std::unique_ptr<transport::Connector> connector;
    std::shared_ptr<transport::Region> acknowledgements;  // null for a read-only client
  };
  bool WantsGpuMemory(int server) const;
  absl::StatusOr<Offer> OfferOver(size_t transport, int server, absl::Duration timeout);
  proto::ConnectRequest RequestWith(int server,
                                    const std::vector<transport::NamedOffer>& offers) const;
  absl::Status Check(int server, const proto::ConnectReply& reply,
                     DataConnection& connection) const;
  absl::Status CheckLocations(int server, const proto::ConnectReply& reply,
                              const std::vector<int64_t>& regions,
                              DataConnection& connection) const;

  const Options options_;
  const Layout* const layout_;
  ServerClient* const servers_;
  const std::vector<transport::Transport*> transports_;
  std::vector<transport::EventQueue*> queues_;
  std::vector<bool> out_of_reach_;  // by server: memory of its GPU could not be opened
};

std::string ServerName(int server);  // "server-1"

}  // namespace shoal::client
