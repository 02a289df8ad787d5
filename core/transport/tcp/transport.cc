#include "core/transport/tcp/transport.h"

#include <algorithm>
#include <atomic>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/expected_handshakes.h"
#include "core/transport/state_connection.h"
#include "core/transport/tcp/acceptor.h"
#include "core/transport/tcp/io_thread.h"

namespace shoal::transport {
namespace {

constexpr std::string_view kName = "tcp";
constexpr int kMaxIoThreads = 64;
// Multiple of TransportOptions::spin. Bytes of one transfer come in bursts with gaps of about that
// length, and a thread that sleeps in each gap leaves both cores idle for much of the transfer.
constexpr int kSpins = 5;

std::unique_ptr<Connection> MakeConnection(std::shared_ptr<TcpConnectionState> state,
                                           TcpAcceptor* acceptor) {
  return MakeStateConnection(std::move(state), [acceptor](TcpConnectionState& closing) {
    acceptor->Forget(closing.id());
    closing.Close(Cancelled("{}: closed on this side", closing.peer()));
  });
}

class TcpConnector final : public Connector {
 public:
  TcpConnector(const ConnectionOptions& options, const TransportOptions& transport_options,
               std::shared_ptr<const RegionTable> table, TcpAcceptor* acceptor, std::string offer)
      : options_(options),
        transport_options_(transport_options),
        table_(std::move(table)),
        acceptor_(acceptor),
        offer_(std::move(offer)) {}

  const std::string& offer() const override { return offer_; }

  absl::StatusOr<std::unique_ptr<Connection>> Complete(const std::string& answer) override {
    if (used_) {
      return FailedPrecondition("{}: this handshake was completed already", options_.peer);
    }
    used_ = true;
    SHOAL_ASSIGN_OR_RETURN(const std::string body, OpenAnswer(kName, options_.peer, answer));
    SHOAL_ASSIGN_OR_RETURN(const TcpAnswer dial, DecodeTcpAnswer(options_.peer, body));
    if (transport_options_.encrypt && !dial.encrypt) {
      return FailedPrecondition(
          "{} answers with a connection in plain text, and this side wants it "
          "encrypted",
          options_.peer);
    }
    auto connection = Greet(dial);
    return connection.ok() ? std::move(connection)
                           : Annotate(connection.status(), fmt::format("{} at {}:{}", options_.peer,
                                                                       dial.host, dial.port));
  }

 private:
  absl::StatusOr<std::unique_ptr<Connection>> Greet(const TcpAnswer& dial) {
    const absl::Time deadline = RealClock().Now() + options_.handshake_timeout;
    SHOAL_ASSIGN_OR_RETURN(
        UniqueFd socket,
        DialTcp(dial.host, dial.port, transport_options_.socket_buffer_bytes, deadline));
    SHOAL_RETURN_IF_ERROR(TuneTcp(socket.get(), transport_options_.keep_alive,
                                  transport_options_.socket_buffer_bytes));
    const std::string hello =
        EncodeTcpHello({dial.acceptance,
                        ProofOf(dial),
                        {DescribeRegions(options_.exposed), options_.max_outstanding}});
    SHOAL_RETURN_IF_ERROR(SendFrame(
        socket.get(), {.type = TcpFrameType::kHello, .length = hello.size()}, hello, deadline));
    TcpFrame frame;
    SHOAL_RETURN_IF_ERROR(
        ReceiveAll(socket.get(), std::as_writable_bytes(std::span(&frame, 1)), deadline));
    SHOAL_RETURN_IF_ERROR(CheckFrame(frame));
    if (frame.type != TcpFrameType::kWelcome && frame.type != TcpFrameType::kRefusal) {
      return InvalidArgument("unexpected frame in the handshake");
    }
    std::string welcome(frame.length, '\0');
    SHOAL_RETURN_IF_ERROR(
        ReceiveAll(socket.get(), std::as_writable_bytes(std::span(welcome)), deadline));
    if (frame.type == TcpFrameType::kRefusal) {
      return DecodeRefusal(welcome);
    }
    SHOAL_ASSIGN_OR_RETURN(TcpPeer peer, DecodeTcpWelcome(options_.peer, welcome));
    auto state =
        std::make_shared<TcpConnectionState>(options_, table_, transport_options_.gpu_memory);
    const TcpSecrets secrets =
        DeriveTcpSecrets(dial.encrypt ? dial.secret : "", hello, welcome, /*dialled=*/true);
    if (!state->Open(std::move(socket), std::move(peer), secrets, "")) {
      return Internal("cannot watch the socket");
    }
    return MakeConnection(std::move(state), acceptor_);
  }

  const ConnectionOptions options_;
  const TransportOptions transport_options_;
  const std::shared_ptr<const RegionTable> table_;
  TcpAcceptor* const acceptor_;
  const std::string offer_;
  bool used_ = false;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(const TransportOptions& options,
               std::vector<std::unique_ptr<TcpIoThread>> io_threads,
               std::unique_ptr<TcpAcceptor> acceptor)
      : options_(options),
        capabilities_({.one_sided_reads = false,
                       .same_host_only = false,
                       .inline_reads = false,
                       .writes_in_order = true,
                       .exposes_any_memory = true,
                       .exposes_gpu_memory = options.gpu_memory != nullptr,
                       .max_operation_bytes = kMaxPayloadBytes}),
        io_threads_(std::move(io_threads)),
        acceptor_(std::move(acceptor)) {}

  std::string_view name() const override { return kName; }
  const Capabilities& capabilities() const override { return capabilities_; }
  TransportStatistics statistics() const override {
    const int64_t staged = staged_ranges_.load(std::memory_order_relaxed);
    return staged == 0 ? TransportStatistics()
                       : TransportStatistics{.gpu_ranges = {{"staged", staged}}};
  }

  absl::StatusOr<std::unique_ptr<EventQueue>> CreateQueue() override {
    std::vector<TcpIoThread*> io_threads;
    for (const auto& io : io_threads_) {
      io_threads.push_back(io.get());
    }
    return TcpQueue::Create(std::move(io_threads), kSpins * options_.spin);
  }

  absl::StatusOr<std::shared_ptr<Region>> Allocate(int64_t bytes, Access access) override {
    return AnonymousRegion::Allocate(table_, bytes, access);
  }

  absl::StatusOr<std::shared_ptr<Region>> Register(std::span<std::byte> memory,
                                                   Access access) override {
    SHOAL_ASSIGN_OR_RETURN(const Residence residence,
                           ResidenceOf(options_.gpu_memory.get(), memory));
    if (residence == Residence::kGpu && access == Access::kLocal) {
      return Unimplemented("tcp does not reach memory of a GPU; give it memory of the host");
    }
    if (residence == Residence::kGpu) {
      staged_ranges_.fetch_add(1, std::memory_order_relaxed);
      LogInfo("tcp: {} of a GPU's memory pass through memory of the host on their way to peers",
              FormatBytes(static_cast<int64_t>(memory.size())));
    }
    return RegisteredRegion::Register(table_, memory, access, residence);
  }

  absl::StatusOr<std::unique_ptr<Connector>> Offer(const ConnectionOptions& options) override {
    SHOAL_RETURN_IF_ERROR(Check(options));
    return std::make_unique<TcpConnector>(options, options_, table_, acceptor_.get(),
                                          SealOffer(kName, ""));
  }

  absl::StatusOr<Acceptance> Accept(const std::string& offer,
                                    const ConnectionOptions& options) override {
    SHOAL_RETURN_IF_ERROR(Check(options));
    SHOAL_ASSIGN_OR_RETURN(const std::string body, OpenOffer(kName, options.peer, offer));
    if (!body.empty()) {
      return InvalidArgument("{}: malformed transport offer", options.peer);
    }
    TcpAnswer answer = {
        .host = options_.advertise_host.empty() ? options_.listen_host : options_.advertise_host,
        .port = acceptor_->port(),
        .encrypt = options_.encrypt,
        .secret = RandomSecret(kTcpSecretBytes)};
    auto state = std::make_shared<TcpConnectionState>(options, table_, options_.gpu_memory,
                                                      answer.encrypt ? answer.secret : "");
    answer.acceptance = state->id();
    acceptor_->Expect(state, ProofOf(answer), options.handshake_timeout);
    return Acceptance{MakeConnection(std::move(state), acceptor_.get()),
                      SealAnswer(kName, EncodeTcpAnswer(answer))};
  }

 private:
  absl::Status Check(const ConnectionOptions& options) const {
    return CheckOwnConnectionOptions<TcpQueue, RegisteredRegion>(options, *table_);
  }

  const TransportOptions options_;
  const std::shared_ptr<RegionTable> table_ = std::make_shared<RegionTable>();
  std::atomic<int64_t> staged_ranges_{0};
  const Capabilities capabilities_;
  const std::vector<std::unique_ptr<TcpIoThread>> io_threads_;
  const std::unique_ptr<TcpAcceptor> acceptor_;
};

absl::Status CheckOptions(const TransportOptions& options) {
  if (options.io_threads < 1 || options.io_threads > kMaxIoThreads) {
    return InvalidArgument("tcp: io_threads is {}, must be 1 to {}", options.io_threads,
                           kMaxIoThreads);
  }
  if (options.keep_alive <= absl::ZeroDuration() || options.socket_buffer_bytes < 0) {
    return InvalidArgument("tcp: keep_alive must be positive and socket_buffer_bytes not negative");
  }
  const bool wildcard = options.listen_host.empty() || options.listen_host == "0.0.0.0" ||
                        options.listen_host == "::";
  if (wildcard && options.advertise_host.empty()) {
    return InvalidArgument(
        "tcp: listening on '{}' needs advertise_host, the name or address that peers dial",
        options.listen_host);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportOptions& options) {
  SHOAL_RETURN_IF_ERROR(CheckOptions(options));
  std::vector<std::unique_ptr<TcpIoThread>> io_threads;
  for (int i = 0; i < options.io_threads; ++i) {
    SHOAL_ASSIGN_OR_RETURN(auto io, TcpIoThread::Start(options.keep_alive, kSpins * options.spin));
    io_threads.push_back(std::move(io));
  }
  SHOAL_ASSIGN_OR_RETURN(auto acceptor, TcpAcceptor::Start(options));
  return std::make_unique<TcpTransport>(options, std::move(io_threads), std::move(acceptor));
}

}  // namespace shoal::transport
