#include "core/transport/shm/transport.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/expected_handshakes.h"
#include "core/transport/shm/service.h"
#include "core/transport/state_connection.h"

namespace shoal::transport {
namespace {

constexpr std::string_view kName = "shm";

std::unique_ptr<Connection> MakeConnection(std::shared_ptr<ShmConnectionState> state,
                                           ShmService* service) {
  // A copy ends within milliseconds, unless the peer was stopped in the middle of it.
  constexpr absl::Duration kPatience = absl::Seconds(1);
  return MakeStateConnection(std::move(state), [service](ShmConnectionState& closing) {
    closing.Close(Cancelled("{}: closed on this side", closing.peer()), kPatience);
    service->Leave(closing.id());
  });
}

// Waits until the socket has a message.
absl::StatusOr<ShmMessage> AwaitMessage(int socket, absl::Duration timeout, std::string_view peer) {
  const absl::Time deadline = RealClock().Now() + timeout;
  for (;;) {
    absl::StatusOr<ShmMessage> message = ReceiveShmMessage(socket);
    if (!absl::IsNotFound(message.status())) {
      return message;
    }
    const absl::Duration left = deadline - RealClock().Now();
    if (left <= absl::ZeroDuration()) {
      return DeadlineExceeded("{}: no answer to the handshake within {}", peer,
                              absl::FormatDuration(timeout));
    }
    pollfd poll_fd = {.fd = socket, .events = POLLIN, .revents = 0};
    const timespec left_spec = absl::ToTimespec(left);
    ppoll(&poll_fd, 1, &left_spec, nullptr);
  }
}

// Waits until the peer has closed this side's GPU memory that it opened in a handshake that then
// failed: it does so before it closes its socket.
void AwaitPeersEnd(int socket, const std::string& peer) {
  (void)SendShmMessage(socket, ShmMessageType::kGoodbye, "");
  const absl::Time deadline = RealClock().Now() + kPartingPatience;
  absl::StatusOr<ShmMessage> message = ShmMessage{.type = ShmMessageType::kGoodbye};
  while (message.ok() && message->type != ShmMessageType::kEnd && RealClock().Now() < deadline) {
    message = AwaitMessage(socket, deadline - RealClock().Now(), peer);
  }
  if (!message.ok() || message->type != ShmMessageType::kEnd) {
    LogWarning("{}: it may still have memory of a GPU open that goes now", peer);
  }
}

class ShmConnector final : public Connector {
 public:
  ShmConnector(const ConnectionOptions& options, std::shared_ptr<const RegionTable> table,
               std::shared_ptr<GpuMemory> gpu, ShmService* service, std::string offer)
      : options_(options),
        table_(std::move(table)),
        gpu_(std::move(gpu)),
        service_(service),
        offer_(std::move(offer)) {}

  const std::string& offer() const override { return offer_; }

  absl::StatusOr<std::unique_ptr<Connection>> Complete(const std::string& answer) override {
    if (used_) {
      return FailedPrecondition("{}: this handshake was completed already", options_.peer);
    }
    used_ = true;
    SHOAL_ASSIGN_OR_RETURN(const std::string body, OpenAnswer(kName, options_.peer, answer));
    ByteReader reader(body);
    const std::string host = reader.String();
    const std::string name = reader.String();
    ShmHello hello;
    hello.acceptance = reader.U64();
    hello.secret = reader.String();
    if (!reader.complete()) {
      return InvalidArgument("{}: malformed transport answer", options_.peer);
    }
    if (host != HostIdentity()) {
      return FailedPrecondition("{}: it runs on another host; use tcp", options_.peer);
    }
    hello.regions = OfferRegions(options_.exposed);
    auto connection = Greet(name, hello);
    return connection.ok() ? std::move(connection) : Annotate(connection.status(), options_.peer);
  }

 private:
  absl::StatusOr<std::unique_ptr<Connection>> Greet(const std::string& name,
                                                    const ShmHello& hello) {
    SHOAL_ASSIGN_OR_RETURN(UniqueFd socket, DialShm(name));
    SHOAL_RETURN_IF_ERROR(CheckSameUser(socket.get()));
    const ShmQueueWake& wake = *static_cast<ShmQueue*>(options_.queue)->wake();
    std::vector<int> fds = {wake.page.fd(), wake.sleeper->event_fd()};
    AppendFds(options_.exposed, fds);
    SHOAL_RETURN_IF_ERROR(
        SendShmMessage(socket.get(), ShmMessageType::kHello, EncodeShmHello(hello), fds));
    auto connection = AwaitWelcome(socket);
    if (!connection.ok() && std::ranges::any_of(hello.regions, [](const ShmRegionOffer& offer) {
          return offer.share.has_value();
        })) {
      AwaitPeersEnd(socket.get(), options_.peer);
    }
    return connection;
  }

  // Takes over the socket if welcome.
  absl::StatusOr<std::unique_ptr<Connection>> AwaitWelcome(UniqueFd& socket) {
    SHOAL_ASSIGN_OR_RETURN(ShmMessage message,
                           AwaitMessage(socket.get(), options_.handshake_timeout, options_.peer));
    if (message.type == ShmMessageType::kRefusal) {
      return DecodeRefusal(message.body);
    }
    if (message.type != ShmMessageType::kWelcome || message.fds.empty()) {
      return Unavailable("the peer ended the handshake");
    }
    ByteReader reader(message.body);
    SHOAL_ASSIGN_OR_RETURN(const std::vector<ShmRegionOffer> offers,
                           ReadOffers(options_.peer, reader));
    SHOAL_ASSIGN_OR_RETURN(
        SharedMemory control,
        SharedMemory::Map(std::move(message.fds[0]), sizeof(ShmControl), /*writable=*/true));
    SHOAL_ASSIGN_OR_RETURN(
        PeerMemory memory,
        MapPeerMemory(options_.peer, offers, std::span<UniqueFd>(message.fds).subspan(1), gpu_,
                      options_.opens_gpu_memory));
    auto state = ShmConnectionState::Create(options_, table_, gpu_, std::move(control),
                                            /*is_connector=*/true);
    state->Open(std::move(memory));
    service_->Watch(state, std::move(socket));
    return MakeConnection(std::move(state), service_);
  }

  const ConnectionOptions options_;
  const std::shared_ptr<const RegionTable> table_;
  const std::shared_ptr<GpuMemory> gpu_;
  ShmService* const service_;
  const std::string offer_;
  bool used_ = false;
};

std::vector<std::string> NamesOf(const GpuMemory* gpu) {
  std::vector<std::string> names;
  for (int i = 0; gpu != nullptr && i < gpu->gpus(); ++i) {
    if (std::string name = GpuName(gpu->gpu(i).uuid); !name.empty()) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

class ShmTransport final : public Transport {
 public:
  ShmTransport(std::unique_ptr<ShmService> service, const TransportOptions& options)
      : service_(std::move(service)),
        spin_(options.spin),
        gpu_(options.gpu_memory),
        gpu_job_(options.gpu_job),
        capabilities_{
            .one_sided_reads = true,
            .same_host_only = true,
            .inline_reads = true,
            .writes_in_order = true,
            .exposes_gpu_memory = gpu_ != nullptr,
            .opens_gpus = NamesOf(gpu_.get()),
            .max_operation_bytes = 4 * kMiB,
            .slow_gpu_reads = gpu_ != nullptr && !gpu_->PinsReadOnly() && !gpu_job_
                                  ? "this GPU copies slowly out of memory that its process may "
                                    "only read, and servers let it only where the job says "
                                    "train.device: cuda"
                                  : ""} {}

  std::string_view name() const override { return kName; }
  const Capabilities& capabilities() const override { return capabilities_; }

  absl::StatusOr<std::unique_ptr<EventQueue>> CreateQueue() override {
    return ShmQueue::Create(spin_);
  }

  absl::StatusOr<std::shared_ptr<Region>> Allocate(int64_t bytes, Access access) override {
    if (access == Access::kLocal) {
      return AnonymousRegion::Allocate(table_, bytes, access);
    }
    SHOAL_ASSIGN_OR_RETURN(
        SharedMemory memory,
        SharedMemory::Create(bytes,
                             /*peers_read_only=*/access == Access::kRemoteRead && !gpu_job_));
    return std::make_shared<ShmRegion>(table_, std::move(memory), access);
  }

  absl::StatusOr<std::shared_ptr<Region>> Register(std::span<std::byte> memory,
                                                   Access access) override {
    SHOAL_ASSIGN_OR_RETURN(const Residence residence, ResidenceOf(gpu_.get(), memory));
    if (access != Access::kLocal && residence == Residence::kGpu) {
      SHOAL_ASSIGN_OR_RETURN(const GpuShare share, gpu_->Share(memory));
      return std::make_shared<ShmRegion>(table_, memory, share, access);
    }
    if (access != Access::kLocal) {
      return Unimplemented(
          "shm can expose only memory it allocated; allocate it here and register it with the "
          "other transports");
    }
    return RegisteredRegion::Register(table_, memory, access, residence);
  }

  absl::StatusOr<std::unique_ptr<Connector>> Offer(const ConnectionOptions& options) override {
    SHOAL_RETURN_IF_ERROR(Check(options));
    ByteWriter writer;
    writer.String(HostIdentity());
    return std::make_unique<ShmConnector>(options, table_, gpu_, service_.get(),
                                          SealOffer(kName, writer.bytes()));
  }

  absl::StatusOr<Acceptance> Accept(const std::string& offer,
                                    const ConnectionOptions& options) override {
    SHOAL_RETURN_IF_ERROR(Check(options));
    SHOAL_ASSIGN_OR_RETURN(const std::string body, OpenOffer(kName, options.peer, offer));
    ByteReader reader(body);
    const std::string host = reader.String();
    if (!reader.complete()) {
      return InvalidArgument("{}: malformed transport offer", options.peer);
    }
    if (host != HostIdentity()) {
      return FailedPrecondition(
          "{}: it runs on another host or in another network namespace; use tcp", options.peer);
    }
    SHOAL_ASSIGN_OR_RETURN(SharedMemory control,
                           SharedMemory::Create(sizeof(ShmControl), /*peers_read_only=*/false));
    auto state = ShmConnectionState::Create(options, table_, gpu_, std::move(control),
                                            /*is_connector=*/false);
    ByteWriter writer;
    writer.String(HostIdentity());
    writer.String(service_->listen_name());
    writer.U64(state->id());
    writer.String(service_->Expect(state, options.handshake_timeout));
    return Acceptance{MakeConnection(std::move(state), service_.get()),
                      SealAnswer(kName, writer.bytes())};
  }

 private:
  absl::Status Check(const ConnectionOptions& options) const {
    return CheckOwnConnectionOptions<ShmQueue, ShmRegion>(options, *table_);
  }

  const std::unique_ptr<ShmService> service_;
  const absl::Duration spin_;
  const std::shared_ptr<GpuMemory> gpu_;  // null: none
  const bool gpu_job_;
  const std::shared_ptr<RegionTable> table_ = std::make_shared<RegionTable>();
  const Capabilities capabilities_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateShmTransport(const TransportOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<ShmService> service, ShmService::Start());
  return std::make_unique<ShmTransport>(std::move(service), options);
}

}  // namespace shoal::transport
