// Gets and pushes over a transport, as workers and servers make them.
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/bench/load.h"
#include "core/transport/registry/registry.h"

namespace shoal::transport {
namespace {

constexpr int64_t kAcknowledgementBytes = 64;
constexpr absl::Duration kStall = absl::Seconds(10);  // nothing takes this long

class TransportLoad final : public Load {
 public:
  TransportLoad(BenchOperation operation, int64_t in_flight, const LoadShape& shape)
      : operation_(operation), in_flight_(std::min(in_flight, shape.blocks())), shape_(shape) {}

  ~TransportLoad() override {
    stopping_.store(true);
    if (server_thread_.joinable()) {
      server_queue_->Wake();
      server_thread_.join();
    }
  }

  absl::Status Start(const std::string& name, const BenchOptions& options) {
    const TransportOptions transport_options = {.encrypt = options.encrypt,
                                                .io_threads = options.io_threads,
                                                .socket_buffer_bytes = options.socket_buffer_bytes};
    SHOAL_ASSIGN_OR_RETURN(server_, CreateTransport(name, transport_options));
    SHOAL_ASSIGN_OR_RETURN(client_, CreateTransport(name, transport_options));
    SHOAL_ASSIGN_OR_RETURN(server_queue_, server_->CreateQueue());
    SHOAL_ASSIGN_OR_RETURN(acknowledgement_,
                           server_->Allocate(kAcknowledgementBytes, Access::kLocal));
    for (int i = 0; i < shape_.clients; ++i) {
      SHOAL_RETURN_IF_ERROR(AddClient(i));
    }
    server_thread_ = std::thread([this] { Serve(); });
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Run(absl::Duration time) override {
    const absl::Time end = RealClock().Now() + time;
    std::vector<absl::StatusOr<int64_t>> moved(clients_.size(), 0);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < clients_.size(); ++i) {
      threads.emplace_back(
          [this, i, end, &moved] { moved[i] = Drive(clients_[i], end, in_flight_); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    int64_t sum = 0;
    for (const auto& bytes : moved) {
      SHOAL_RETURN_IF_ERROR(bytes.status());
      sum += *bytes;
    }
    return sum;
  }

  absl::Status MoveInTurn(int blocks) override {
    Client& client = clients_[0];
    const std::array<uint32_t, 1> slot = {0};
    std::array<Event, 4> events;
    for (int block = 0; block < blocks; ++block) {
      SHOAL_RETURN_IF_ERROR(Post(client, slot));
      for (int missing = events_each(); missing > 0;) {
        const size_t count = client.queue->Poll(events);
        for (size_t i = 0; i < count; ++i) {
          SHOAL_RETURN_IF_ERROR(CheckEvent(events[i]));
          --missing;
        }
        if (count == 0 && !client.queue->Wait(kStall)) {
          return Stalled();
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Client {
    std::unique_ptr<EventQueue> queue;
    std::shared_ptr<Region> local;
    std::shared_ptr<Region> acknowledgements;
    std::unique_ptr<Connection> connection;
    std::span<std::byte> memory;  // of `local`
    int64_t next = 0;             // block's offset
    // Of one post; kept so that a post allocates nothing.
    std::vector<ReadOperation> reads;
    std::vector<WriteOperation> writes;
  };

  absl::Status AddClient(int index) {
    Client client;
    SHOAL_ASSIGN_OR_RETURN(client.queue, client_->CreateQueue());
    SHOAL_ASSIGN_OR_RETURN(client.local, client_->Allocate(shape_.client_bytes(), Access::kLocal));
    client.memory = client.local->bytes();
    SHOAL_ASSIGN_OR_RETURN(
        client.acknowledgements,
        client_->Allocate(kAcknowledgementBytes * in_flight_, Access::kRemoteWrite));
    const Access access =
        operation_ == BenchOperation::kGet ? Access::kRemoteRead : Access::kRemoteWrite;
    SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<Region> remote,
                           server_->Allocate(shape_.client_bytes(), access));
    // Fresh pages would be measured else.
    std::memset(client.local->bytes().data(), 'l', client.local->bytes().size());
    std::memset(remote->bytes().data(), 'r', remote->bytes().size());
    ConnectionOptions options;
    options.queue = client.queue.get();
    options.exposed = {client.acknowledgements};
    options.peer = "bench-server";
    SHOAL_ASSIGN_OR_RETURN(auto connector, client_->Offer(options));
    options.queue = server_queue_.get();
    options.exposed = {std::move(remote)};
    options.peer = fmt::format("bench-client-{}", index);
    SHOAL_ASSIGN_OR_RETURN(Acceptance acceptance, server_->Accept(connector->offer(), options));
    SHOAL_ASSIGN_OR_RETURN(client.connection, connector->Complete(acceptance.answer));
    accepted_[acceptance.connection->id()] = std::move(acceptance.connection);
    clients_.push_back(std::move(client));
    return absl::OkStatus();
  }

  // The server's part in pushes: each doorbell is answered. Gets need none.
  void Serve() {
    std::array<Event, 64> events;
    while (!stopping_.load()) {
      const size_t count = server_queue_->Poll(events);
      for (size_t i = 0; i < count; ++i) {
        if (events[i].kind != Event::Kind::kDoorbell) {
          continue;
        }
        const WriteOperation acknowledge = {.id = 0,
                                            .region = 0,
                                            .offset = kAcknowledgementBytes * events[i].immediate,
                                            .from = acknowledgement_->bytes(),
                                            .ring = true,
                                            .immediate = events[i].immediate};
        // A client that is gone says so itself.
        (void)accepted_.at(events[i].connection)->PostWrites({&acknowledge, 1});
      }
      if (count == 0) {
        server_queue_->Wait(absl::Seconds(1));
      }
    }
  }

  absl::Status Post(Client& client, std::span<const uint32_t> slots) {
    client.reads.clear();
    client.writes.clear();
    for (const uint32_t slot : slots) {
      const int64_t offset = client.next;
      client.next = offset + 2 * shape_.bytes > shape_.client_bytes() ? 0 : offset + shape_.bytes;
      const std::span<std::byte> local =
          client.memory.subspan(static_cast<size_t>(offset), static_cast<size_t>(shape_.bytes));
      if (operation_ == BenchOperation::kGet) {
        client.reads.push_back({.id = slot, .region = 0, .offset = offset, .into = local});
      } else {
        client.writes.push_back({.id = slot,
                                 .region = 0,
                                 .offset = offset,
                                 .from = local,
                                 .ring = true,
                                 .immediate = slot});
      }
    }
    return operation_ == BenchOperation::kGet ? client.connection->PostReads(client.reads)
                                              : client.connection->PostWrites(client.writes);
  }

  // A push is over with its acknowledgement and its own completion, in either order.
  int events_each() const { return operation_ == BenchOperation::kGet ? 1 : 2; }

  static absl::Status CheckEvent(const Event& event) {
    return event.kind == Event::Kind::kClosed
               ? Unavailable("the connection under measurement closed")
               : event.status;
  }
  static absl::Status Stalled() {
    return DeadlineExceeded("the transport under measurement stalled");
  }

  // Keeps `in_flight` operations posted until `end`, and at least one.
  absl::StatusOr<int64_t> Drive(Client& client, absl::Time end, int64_t in_flight) {
    std::vector<uint32_t> free_slots;
    for (int64_t i = 0; i < in_flight; ++i) {
      free_slots.push_back(static_cast<uint32_t>(i));
    }
    std::vector<int> missing(static_cast<size_t>(in_flight));
    int64_t done = 0;
    bool posting = true;
    std::array<Event, 64> events;
    while (posting || free_slots.size() < static_cast<size_t>(in_flight)) {
      if (posting && !free_slots.empty()) {
        for (const uint32_t slot : free_slots) {
          missing[slot] = events_each();
        }
        SHOAL_RETURN_IF_ERROR(Post(client, free_slots));
        free_slots.clear();
        posting = RealClock().Now() < end;
      }
      const size_t count = client.queue->Poll(events);
      for (size_t i = 0; i < count; ++i) {
        SHOAL_RETURN_IF_ERROR(CheckEvent(events[i]));
        const uint64_t slot =
            events[i].kind == Event::Kind::kDoorbell ? events[i].immediate : events[i].operation;
        if (slot >= missing.size()) {
          return Internal("an event of operation {}, which was never posted", slot);
        }
        if (--missing[slot] == 0) {
          free_slots.push_back(static_cast<uint32_t>(slot));
          ++done;
        }
      }
      if (count == 0 && !client.queue->Wait(kStall)) {
        return Stalled();
      }
    }
    return done * shape_.bytes;
  }

  const BenchOperation operation_;
  const int64_t in_flight_;
  const LoadShape shape_;
  std::atomic<bool> stopping_{false};

  // In the order in which they may go: connections before queues before transports.
  std::unique_ptr<Transport> server_;
  std::unique_ptr<Transport> client_;
  std::unique_ptr<EventQueue> server_queue_;
  std::shared_ptr<Region> acknowledgement_;
  std::vector<Client> clients_;
  std::map<uint64_t, std::unique_ptr<Connection>> accepted_;
  std::thread server_thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Load>> MakeTransportLoad(const std::string& transport,
                                                        BenchOperation operation, int64_t in_flight,
                                                        const LoadShape& shape,
                                                        const BenchOptions& options) {
  auto load = std::make_unique<TransportLoad>(operation, in_flight, shape);
  SHOAL_RETURN_IF_ERROR(load->Start(transport, options));
  return load;
}

}  // namespace shoal::transport
