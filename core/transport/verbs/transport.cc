#include "core/transport/verbs/transport.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/transport/expected_handshakes.h"
#include "core/transport/state_connection.h"
#include "core/transport/verbs/device_probe.h"
#include "core/transport/verbs/service.h"

namespace shoal::transport {
namespace {

constexpr std::string_view kName = "verbs";
// A device whose queues hold fewer doorbells is useless.
constexpr int kLeastDoorbells = 16;
// No peer retries anything for longer than this: VerbsOptions' retries, as slow as devices may make
// them.
constexpr absl::Duration kQuarantine = absl::Seconds(10);

// What connections of one transport share.
struct Shared {
  TransportOptions options;
  std::shared_ptr<MemoryDevices> memory = std::make_shared<MemoryDevices>();
  std::vector<LocalRail> rails;
  QueueDepths depths;  // the same on all devices
  std::shared_ptr<RegistrationTable> table = std::make_shared<RegistrationTable>();
  std::shared_ptr<QueuePairQuarantine> quarantine =
      std::make_shared<QueuePairQuarantine>(kQuarantine);

  std::vector<std::shared_ptr<VerbsDevice>>& devices() const { return memory->list; }
  int64_t doorbells() const { return depths.receives - ReceiveQueue::kSpare; }
};

const std::shared_ptr<VerbsQueueCore>& QueueOf(const ConnectionOptions& options) {
  return static_cast<VerbsQueue*>(options.queue)->core();
}

absl::StatusOr<std::unique_ptr<ConnectionRail>> MakeRail(const Shared& shared, size_t rail,
                                                         const ConnectionOptions& options) {
  const LocalRail& local = shared.rails[rail];
  const bool peers_write = std::ranges::any_of(
      options.exposed, [](const auto& region) { return region->access() == Access::kRemoteWrite; });
  auto made = ConnectionRail::Create({.local = local,
                                      .device = shared.devices()[local.device],
                                      .channel = QueueOf(options)->channel(local.device),
                                      .quarantine = shared.quarantine,
                                      .depths = shared.depths,
                                      .verbs = shared.options.verbs,
                                      .peers_write = peers_write});
  return made.ok() ? std::move(made) : Annotate(made.status(), options.peer);
}

std::unique_ptr<Connection> MakeConnection(std::shared_ptr<VerbsConnectionState> state) {
  return MakeStateConnection(std::move(state), [](VerbsConnectionState& closing) {
    closing.Close(Cancelled("{}: closed on this side", closing.peer()));
  });
}

class VerbsConnector final : public Connector {
 public:
  static absl::StatusOr<std::unique_ptr<Connector>> Create(std::shared_ptr<const Shared> shared,
                                                           const ConnectionOptions& options) {
    std::unique_ptr<VerbsConnector> connector(new VerbsConnector(std::move(shared), options));
    VerbsOffer offer = {
        .nonce = connector->nonce_, .doorbells = connector->shared_->doorbells(), .rails = {}};
    for (size_t i = 0; i < connector->shared_->rails.size(); ++i) {
      SHOAL_ASSIGN_OR_RETURN(auto rail, MakeRail(*connector->shared_, i, options));
      const Rail& local = connector->shared_->rails[i].rail;
      OfferedRail& offered = offer.rails.emplace_back();
      offered.rail.link_layer = local.port.link_layer;
      for (const GidDescription& gid : local.gids) {
        offered.rail.gids.push_back(gid.gid);
      }
      offered.end = rail->self();
      connector->rails_.push_back(std::move(rail));
    }
    connector->offer_ = SealOffer(kName, EncodeOffer(offer));
    return connector;
  }

  const std::string& offer() const override { return offer_; }

  absl::StatusOr<std::unique_ptr<Connection>> Complete(const std::string& answer) override {
    if (used_) {
      return FailedPrecondition("{}: this handshake was completed already", options_.peer);
    }
    SHOAL_ASSIGN_OR_RETURN(const std::string body, OpenAnswer(kName, options_.peer, answer));
    SHOAL_ASSIGN_OR_RETURN(const VerbsAnswer decoded, DecodeAnswer(options_.peer, nonce_, body));
    used_ = true;
    SHOAL_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ConnectionRail>> rails,
                           ConnectRails(decoded));
    auto state = std::make_shared<VerbsConnectionState>(
        options_, shared_->options.verbs, QueueOf(options_), shared_->table,
        shared_->memory->gpu_registrar,
        VerbsConnectionState::Terms{.doorbells_here = shared_->doorbells(),
                                    .secret = decoded.secret,
                                    .is_acceptor = false});
    const absl::Status greeted = Greet(*state, std::move(rails), decoded.doorbells);
    if (!greeted.ok()) {
      state->queue()->End(*state, greeted);
      return greeted;
    }
    return MakeConnection(std::move(state));
  }

 private:
  VerbsConnector(std::shared_ptr<const Shared> shared, const ConnectionOptions& options)
      : shared_(std::move(shared)), options_(options), nonce_(SecureToken()) {}

  absl::StatusOr<std::vector<std::unique_ptr<ConnectionRail>>> ConnectRails(
      const VerbsAnswer& answer) {
    std::vector<std::unique_ptr<ConnectionRail>> connected;
    for (const AnsweredRail& answered : answer.rails) {
      const auto index = static_cast<size_t>(answered.connector_rail);
      if (index >= rails_.size() || rails_[index] == nullptr) {
        return InvalidArgument("{}: answered with a rail that was not offered", options_.peer);
      }
      std::unique_ptr<ConnectionRail> rail = std::move(rails_[index]);
      const std::vector<GidDescription>& gids = rail->local().rail.gids;
      const auto gid = static_cast<size_t>(answered.connector_gid);
      if (gid >= gids.size()) {
        return InvalidArgument("{}: answered with a GID that was not offered", options_.peer);
      }
      SHOAL_RETURN_IF_ERROR(rail->Connect(gids[gid], answered.end, connected.empty()));
      connected.push_back(std::move(rail));
    }
    rails_.clear();
    return connected;
  }

  // Sends the greeting and waits for the peer's.
  absl::Status Greet(VerbsConnectionState& state,
                     std::vector<std::unique_ptr<ConnectionRail>> rails, int64_t doorbells) {
    state.queue()->Add(state.shared_from_this());
    SHOAL_RETURN_IF_ERROR(state.Start(std::move(rails), doorbells));
    const absl::Time deadline = RealClock().Now() + options_.handshake_timeout;
    for (int look = 0; !state.open() && !state.ended(); ++look) {
      if (RealClock().Now() >= deadline) {
        return DeadlineExceeded("{}: no answer over {} within {}", options_.peer, kName,
                                absl::FormatDuration(options_.handshake_timeout));
      }
      if (look < 100) {
        sched_yield();
      } else {
        absl::SleepFor(absl::Microseconds(50));
      }
      state.queue()->Drive(state);
    }
    if (state.ended()) {
      const absl::Status why = state.end_status();
      return why.ok() ? Unavailable("{}: the peer closed the connection", options_.peer) : why;
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<const Shared> shared_;
  const ConnectionOptions options_;
  const std::string nonce_;
  std::string offer_;
  std::vector<std::unique_ptr<ConnectionRail>> rails_;
  bool used_ = false;
};

class VerbsTransport final : public Transport {
 public:
  VerbsTransport(std::shared_ptr<const Shared> shared, std::unique_ptr<VerbsService> service)
      : shared_(std::move(shared)),
        capabilities_({.one_sided_reads = true,
                       .same_host_only = false,
                       .inline_reads = false,
                       // RDMA promises no order of placement before a completion; adaptive routing
                       // and relaxed ordering of PCIe break it.
                       .writes_in_order = false,
                       .exposes_any_memory = true,
                       .exposes_gpu_memory = shared_->memory->gpu_registrar != nullptr,
                       .max_operation_bytes = shared_->options.verbs.piece_bytes}),
        service_(std::move(service)) {}

  std::string_view name() const override { return kName; }
  const Capabilities& capabilities() const override { return capabilities_; }

  TransportStatistics statistics() const override {
    TransportStatistics statistics;
    if (shared_->memory->gpu_registrar != nullptr) {
      const GpuRegistrar::Statistics gpu = shared_->memory->gpu_registrar->statistics();
      statistics.gpu_ranges = {
          {"dma_buf", gpu.by(GpuRoute::kDmaBufPcie) + gpu.by(GpuRoute::kDmaBuf)},
          {"peer_memory", gpu.by(GpuRoute::kPeerMemory)},
          {"refused", gpu.by(GpuRoute::kNone)}};
      std::erase_if(statistics.gpu_ranges, [](const auto& route) { return route.second == 0; });
    }
    for (const std::shared_ptr<VerbsDevice>& device : shared_->devices()) {
      for (const auto& [kind, errors] : device->errors()) {
        statistics.device_errors[kind] += errors;
      }
    }
    return statistics;
  }

  absl::StatusOr<std::unique_ptr<EventQueue>> CreateQueue() override {
    SHOAL_ASSIGN_OR_RETURN(
        std::shared_ptr<VerbsQueueCore> core,
        VerbsQueueCore::Create(shared_->devices(), shared_->options.spin, service_->nudge()));
    service_->Watch(core);
    return std::make_unique<VerbsQueue>(std::move(core));
  }

  absl::StatusOr<std::shared_ptr<Region>> Allocate(int64_t bytes, Access access) override {
    return VerbsRegion::Allocate(shared_->table, shared_->memory, bytes, access);
  }

  absl::StatusOr<std::shared_ptr<Region>> Register(std::span<std::byte> memory,
                                                   Access access) override {
    return VerbsRegion::Register(shared_->table, shared_->memory, memory, access);
  }

  absl::StatusOr<std::unique_ptr<Connector>> Offer(const ConnectionOptions& options) override {
    SHOAL_RETURN_IF_ERROR(Check(options));
    return VerbsConnector::Create(shared_, options);
  }

  absl::StatusOr<Acceptance> Accept(const std::string& offer,
                                    const ConnectionOptions& options) override {
    SHOAL_RETURN_IF_ERROR(Check(options));
    SHOAL_ASSIGN_OR_RETURN(const std::string body, OpenOffer(kName, options.peer, offer));
    SHOAL_ASSIGN_OR_RETURN(const VerbsOffer decoded, DecodeOffer(options.peer, body));
    VerbsAnswer answer = {.doorbells = shared_->doorbells(), .secret = SecureToken(), .rails = {}};
    SHOAL_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ConnectionRail>> rails,
                           ConnectRails(decoded, options, answer));
    auto state = std::make_shared<VerbsConnectionState>(
        options, shared_->options.verbs, QueueOf(options), shared_->table,
        shared_->memory->gpu_registrar,
        VerbsConnectionState::Terms{
            .doorbells_here = shared_->doorbells(), .secret = answer.secret, .is_acceptor = true});
    SHOAL_RETURN_IF_ERROR(state->Start(std::move(rails), decoded.doorbells));
    state->queue()->Add(state);
    service_->Expect(state, options.handshake_timeout);
    return Acceptance{MakeConnection(std::move(state)),
                      SealAnswer(kName, EncodeAnswer(answer, decoded.nonce))};
  }

 private:
  absl::Status Check(const ConnectionOptions& options) const {
    return CheckOwnConnectionOptions<VerbsQueue, VerbsRegion>(options, *shared_->table);
  }

  // The first rail carries a connection's writes: connections take turns over equally near rails.
  void TakeTurns(std::vector<RailPair>& pairs) {
    const auto node = [this](const RailPair& pair) {
      const size_t device = shared_->rails[static_cast<size_t>(pair.local)].device;
      return shared_->devices()[device]->description().numa_node;
    };
    const auto near = std::ranges::find_if(
        pairs, [&](const RailPair& pair) { return node(pair) != node(pairs.front()); });
    if (const auto count = near - pairs.begin(); count > 1) {
      const uint64_t turn = accepted_.fetch_add(1, std::memory_order_relaxed);
      std::rotate(pairs.begin(),
                  pairs.begin() + static_cast<int64_t>(turn % static_cast<uint64_t>(count)), near);
    }
  }

  absl::StatusOr<std::vector<std::unique_ptr<ConnectionRail>>> ConnectRails(
      const VerbsOffer& offer, const ConnectionOptions& options, VerbsAnswer& answer) {
    std::vector<Rail> local;
    for (const LocalRail& rail : shared_->rails) {
      local.push_back(rail.rail);
    }
    std::vector<RemoteRail> remote;
    for (const OfferedRail& rail : offer.rails) {
      remote.push_back(rail.rail);
    }
    std::vector<RailPair> pairs = PairRails(local, remote);
    TakeTurns(pairs);
    std::vector<std::unique_ptr<ConnectionRail>> connected;
    absl::Status last = Unavailable(
        "{}: none of its RDMA devices can be reached from those here (link layer or address "
        "family differ, or one side has loopback alone)",
        options.peer);
    for (const RailPair& pair : pairs) {
      const auto ours = static_cast<size_t>(pair.local);
      const OfferedRail& theirs = offer.rails[static_cast<size_t>(pair.remote)];
      SHOAL_ASSIGN_OR_RETURN(auto rail, MakeRail(*shared_, ours, options));
      QueuePairEnd peer = theirs.end;
      peer.gid = theirs.rail.gids[static_cast<size_t>(pair.remote_gid)];
      const GidDescription& gid = local[ours].gids[static_cast<size_t>(pair.local_gid)];
      const absl::Status status = rail->Connect(gid, peer, connected.empty());
      if (!status.ok()) {
        LogWarning("{}: {} cannot be used: {}", options.peer, local[ours].device, Message(status));
        continue;
      }
      answer.rails.push_back(
          {.connector_rail = pair.remote, .connector_gid = pair.remote_gid, .end = rail->self()});
      connected.push_back(std::move(rail));
    }
    if (connected.empty()) {
      return last;
    }
    return connected;
  }

  const std::shared_ptr<const Shared> shared_;
  const Capabilities capabilities_;
  const std::unique_ptr<VerbsService> service_;
  std::atomic<uint64_t> accepted_{0};
};

absl::Status CheckOptions(const TransportOptions& options) {
  const VerbsOptions& verbs = options.verbs;
  if (options.keep_alive <= absl::ZeroDuration() || verbs.send_depth < 16 ||
      verbs.signal_interval < 1 || verbs.piece_bytes < 0 || verbs.max_rails < 1 ||
      verbs.inline_bytes < 0) {
    return InvalidArgument(
        "verbs: keep_alive, signal_interval and max_rails must be positive, send_depth at least "
        "16, inline_bytes and piece_bytes not negative");
  }
  if (verbs.retry_count > 6 || verbs.rnr_retry > 6 || verbs.ack_timeout == 0 ||
      verbs.ack_timeout > 31) {
    // For devices 7, and a timeout of 0, mean "forever", and nothing may wait forever.
    return InvalidArgument("verbs: retry counts must be 0 to 6 and ack_timeout 1 to 31");
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceChoice> Choose(const std::vector<DeviceDescription>& described,
                                    const VerbsOptions& verbs, const ServedLocation& place) {
  SHOAL_ASSIGN_OR_RETURN(
      DeviceChoice choice,
      ChooseDevices(described, {.devices = verbs.devices,
                                .gid_index = verbs.gid_index,
                                .max_rails = std::min<int>(verbs.max_rails, kMaxRails),
                                .place = place}));
  if (choice.rails.empty()) {
    return choice.rejected.empty()
               ? NotFound("no RDMA device")
               : Unavailable("no RDMA device is fit: {}", fmt::join(choice.rejected, "; "));
  }
  return choice;
}

// As deep as all devices allow, up to what a connection may use.
absl::StatusOr<QueueDepths> ChooseDepths(const std::vector<std::shared_ptr<VerbsDevice>>& devices,
                                         const VerbsOptions& verbs) {
  QueueDepths depths = {.sends = verbs.send_depth,
                        .receives = static_cast<int>(kMaxWaitingDoorbells) + ReceiveQueue::kSpare};
  for (const auto& device : devices) {
    const DeviceDescription& limits = device->description();
    depths.sends = std::min(depths.sends, limits.max_work_requests);
    depths.receives = std::min(
        {depths.receives, limits.max_work_requests, limits.max_completions - depths.sends});
    if (depths.receives < ReceiveQueue::kSpare + kLeastDoorbells) {
      return Unavailable(
          "RDMA device {} has queues of {} work requests and {} completions: too few", limits.name,
          limits.max_work_requests, limits.max_completions);
    }
  }
  return depths;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options) {
  std::vector<std::string> gpus;
  for (int i = 0; options.gpu_memory != nullptr && i < options.gpu_memory->gpus(); ++i) {
    gpus.push_back(options.gpu_memory->gpu(i).pci_address);
  }
  return CreateVerbsTransport(options, SystemVerbs(), FindServedLocation(gpus));
}

absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options,
                                                                std::shared_ptr<VerbsApi> api,
                                                                const ServedLocation& place) {
  SHOAL_RETURN_IF_ERROR(CheckOptions(options));
  const std::vector<DeviceDescription> described = DescribeDevices(*api);
  SHOAL_ASSIGN_OR_RETURN(const DeviceChoice choice, Choose(described, options.verbs, place));
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  for (const Rail& rail : choice.rails) {
    auto known = std::ranges::find(shared->devices(), rail.device, &VerbsDevice::name);
    if (known == shared->devices().end()) {
      const auto description = std::ranges::find(described, rail.device, &DeviceDescription::name);
      SHOAL_ASSIGN_OR_RETURN(auto device, VerbsDevice::Open(api, *description));
      known = shared->devices().insert(shared->devices().end(), std::move(device));
    }
    shared->rails.push_back(
        {.rail = rail, .device = static_cast<size_t>(known - shared->devices().begin())});
    LogInfo("RDMA over {} port {}: {}", rail.device, rail.port.port, rail.reason);
  }
  if (options.gpu_memory != nullptr) {
    std::vector<GpuRegistrar::Device> reach;
    for (const auto& device : shared->devices()) {
      // Cut at the same size for all, as a region's chunks are.
      reach.push_back({device->name(), device->pd(),
                       static_cast<int64_t>(LargestChunk(shared->devices(), SIZE_MAX))});
    }
    shared->memory->gpu_memory = options.gpu_memory;
    shared->memory->gpu_registrar =
        std::make_shared<GpuRegistrar>(api.get(), options.gpu_memory.get(), std::move(reach));
  }
  SHOAL_ASSIGN_OR_RETURN(shared->depths, ChooseDepths(shared->devices(), options.verbs));
  SHOAL_ASSIGN_OR_RETURN(
      auto service, VerbsService::Start(shared->devices(), shared->quarantine, options.keep_alive));
  return std::make_unique<VerbsTransport>(std::move(shared), std::move(service));
}

}  // namespace shoal::transport
