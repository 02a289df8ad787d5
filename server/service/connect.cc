// ParameterService::Connect: which transport a client gets, and what it is granted.
#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"
#include "core/transport/negotiate.h"
#include "core/transport/shared_region.h"
#include "server/service/parameter_service.h"

namespace shoal::server {
namespace {

static_assert(plan::kMostPushSlots * sizeof(transport::PushAcknowledgement) <=
              transport::kBufferAlignment);
constexpr size_t kMaxClientName = 100;

// Slots, and what makes copies out of them fast.
struct PinnedSlots {
  std::shared_ptr<transport::Region> region;
  std::unique_ptr<PartitionState::Pinned> pinned;
};

// Slots on the host, payloads included.
absl::StatusOr<std::shared_ptr<transport::Region>> AllocateSlots(transport::Transport& transport,
                                                                 PartitionState& state,
                                                                 int64_t bytes) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<transport::Region> slots,
                         transport.Allocate(bytes, transport::Access::kRemoteWrite));
  // What is granted is there: a machine with too little memory shows it now, and no push waits for
  // pages.
  std::ranges::fill(slots->bytes(), std::byte{0});
  const auto pinned = std::make_shared<PinnedSlots>(PinnedSlots{slots, state.Pin(slots->bytes())});
  return std::shared_ptr<transport::Region>(pinned, pinned->region.get());
}

// Payloads in the server's GPU: an allocation for one client alone, who may write all of it.
absl::StatusOr<std::shared_ptr<transport::Region>> AllocatePayloads(transport::Transport& transport,
                                                                    PartitionState& state,
                                                                    PayloadsInGpu& kept,
                                                                    const std::string& client,
                                                                    int64_t bytes) {
  SHOAL_RETURN_IF_ERROR(kept.MayHaveMore(client));
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> memory, state.AllocateShared(bytes));
  SHOAL_ASSIGN_OR_RETURN(
      std::shared_ptr<transport::Region> region,
      transport::ExposeShared(transport, std::move(memory), static_cast<size_t>(bytes),
                              transport::Access::kRemoteWrite));
  kept.Add(client, region);
  return region;
}

}  // namespace

absl::StatusOr<proto::ConnectReply> ParameterService::Connect(
    const proto::ConnectRequest& request) {
  return Counted<proto::ConnectReply>("connect", [&]() -> absl::StatusOr<proto::ConnectReply> {
    absl::MutexLock one_at_a_time(&connect_mutex_);
    SHOAL_RETURN_IF_ERROR(CheckConnect(request));
    Configuration* configuration = nullptr;
    {
      absl::ReaderMutexLock lock(&state_mutex_);
      configuration = active_;
    }
    SHOAL_ASSIGN_OR_RETURN(proto::ConnectReply reply, Accept(*configuration, request));
    absl::ReaderMutexLock lock(&state_mutex_);
    reply.set_version(state_.version());
    if (fenced_.contains(request.incarnation())) {
      configuration->intake->Remove(request.incarnation());  // Fenced while it connected.
      return PermissionDenied("{} is fenced: its lease is over", request.client());
    }
    return reply;
  });
}

absl::Status ParameterService::CheckConnect(const proto::ConnectRequest& request) {
  if (request.layout_version() != transport::kDataLayoutVersion) {
    return FailedPrecondition(
        "{} speaks data layout {}, this server {}: use the same version of shoal everywhere",
        request.client(), request.layout_version(), transport::kDataLayoutVersion);
  }
  if (request.incarnation() == 0 || request.client().empty() ||
      request.client().size() > kMaxClientName) {
    return InvalidArgument("a client needs an incarnation and a name of at most {} bytes",
                           kMaxClientName);
  }
  absl::ReaderMutexLock lock(&state_mutex_);
  if (active_ == nullptr) {
    return Unavailable("{}; try again", state_.Describe());
  }
  if (request.generation() != state_.generation()) {
    return FailedPrecondition("{} works with shard map generation {}, this server with {}",
                              request.client(), request.generation(), state_.generation());
  }
  if (fenced_.contains(request.incarnation())) {
    return PermissionDenied("{} is fenced: its lease is over", request.client());
  }
  if (active_->intake->connections() >= options_.max_clients) {
    return ResourceExhausted(
        "{} cannot connect: {} clients are connected, which is the limit (--max-clients)",
        request.client(), options_.max_clients);
  }
  return absl::OkStatus();
}

absl::StatusOr<proto::ConnectReply> ParameterService::Accept(Configuration& configuration,
                                                             const proto::ConnectRequest& request) {
  // The earlier connection goes first, so that one client never holds slots twice.
  configuration.intake->Remove(request.incarnation());
  std::vector<std::string> transports;
  for (const EnabledTransport& enabled : configuration.transports) {
    transports.emplace_back(enabled.transport->name());
  }
  std::vector<transport::NamedOffer> offers;
  for (const proto::TransportOffer& offer : request.offers()) {
    offers.push_back({offer.transport(), offer.offer()});
  }
  GrantedRegions granted;
  SHOAL_ASSIGN_OR_RETURN(
      transport::TakenOffer taken,
      transport::TakeOffer(transports, offers, request.client(), configuration.unavailable,
                           [&](size_t index, const std::string& offer) {
                             auto answer =
                                 AcceptOver(configuration, index, request, offer, granted);
                             // Slots were registered.
                             metrics_.FollowTransport(*configuration.transports[index].transport);
                             return answer;
                           }));
  proto::ConnectReply reply;
  reply.set_transport(taken.transport);
  reply.set_answer(std::move(taken.answer));
  const std::string& preferred = configuration.job.service.transports.front();
  metrics_.CountConnection(reply.transport());
  if (reply.transport() == preferred) {
    LogInfo("{} is connected over {}", request.client(), reply.transport());
  } else {
    reply.set_reason(taken.reason);
    metrics_.CountFallback(preferred, reply.transport());
    LogWarning("{} is connected over {}, not {}: {}", request.client(), reply.transport(),
               preferred, taken.reason);
  }
  const bool pushes = !request.read_only();
  reply.set_weights_region(granted.weights);
  reply.set_headers_region(granted.headers);
  reply.set_slots_region(granted.slots);
  reply.set_payloads_region(granted.payloads);
  reply.set_gpu(granted.in_gpu() ? configuration.gpu_name : "");
  reply.set_slots(pushes ? configuration.job.service.push_slots : 0);
  reply.set_slot_bytes(pushes ? configuration.slot_bytes : 0);
  reply.set_wire_type(static_cast<uint32_t>(configuration.job.service.wire_type));
  for (const auto& partition : configuration.store->partitions()) {
    proto::PartitionLocation& location = *reply.add_partitions();
    location.set_partition(partition->spec().id);
    location.set_header(partition->place().header);
    location.set_even(partition->place().buffers[0]);
    location.set_odd(partition->place().buffers[1]);
  }
  return reply;
}

absl::StatusOr<ClientConnection::Slots> ParameterService::MakeSlots(Configuration& configuration,
                                                                    transport::Transport& transport,
                                                                    const ClientIdentity& client,
                                                                    int64_t bytes, bool in_gpu) {
  PartitionState& state = configuration.store->state();
  ClientConnection::Slots slots;
  if (in_gpu) {
    auto payloads =
        AllocatePayloads(transport, state, *configuration.payloads_in_gpu, client.name, bytes);
    if (payloads.ok()) {
      // Of the host's region headers alone are touched.
      SHOAL_ASSIGN_OR_RETURN(slots.headers,
                             transport.Allocate(bytes, transport::Access::kRemoteWrite));
      slots.payloads = *std::move(payloads);
      slots.place = PayloadPlace::kShared;
      return slots;
    }
    LogWarning("{} pushes over the host, not into {}: {}", client.name, configuration.gpu_name,
               Message(payloads.status()));
  }
  SHOAL_ASSIGN_OR_RETURN(slots.headers, AllocateSlots(transport, state, bytes));
  slots.payloads = slots.headers;
  return slots;
}

absl::StatusOr<std::string> ParameterService::AcceptOver(Configuration& configuration, size_t index,
                                                         const proto::ConnectRequest& request,
                                                         const std::string& offer,
                                                         GrantedRegions& granted) {
  EnabledTransport& enabled = configuration.transports[index];
  transport::Transport& transport = *enabled.transport;
  const std::string& gpu = configuration.gpu_name;
  const plan::ReachedInGpu reached = plan::PlanReachedInGpu(configuration.job);
  const bool reaches_gpu = transport::ReachesGpu(transport, gpu) &&
                           std::ranges::find(request.gpus(), gpu) != request.gpus().end();
  granted = {};
  transport::ConnectionOptions connection = {.queue = configuration.intake->queue(index),
                                             .exposed = {enabled.weights},
                                             .peer = request.client()};
  const auto expose = [&](std::shared_ptr<transport::Region> region) {
    connection.exposed.push_back(std::move(region));
    return static_cast<int>(connection.exposed.size()) - 1;
  };
  if (reaches_gpu && request.weights_in_gpu() && enabled.gpu_weights != nullptr) {
    granted.weights = expose(enabled.gpu_weights);
  } else {
    SHOAL_RETURN_IF_ERROR(configuration.store->KeepHostWeights());
  }
  ClientConnection::Options options = {
      .client = {.incarnation = request.incarnation(), .name = request.client()},
      .transport = std::string(transport.name())};
  ClientConnection::Slots slots;
  std::shared_ptr<transport::Region> staging;
  if (!request.read_only()) {
    options.slots = configuration.job.service.push_slots;
    options.slot_bytes = configuration.slot_bytes;
    SHOAL_ASSIGN_OR_RETURN(
        slots,
        MakeSlots(configuration, transport, options.client, options.slots * options.slot_bytes,
                  reaches_gpu && reached.slots && request.payloads_in_gpu()));
    SHOAL_ASSIGN_OR_RETURN(
        staging, transport.Allocate(
                     options.slots * static_cast<int64_t>(sizeof(transport::PushAcknowledgement)),
                     transport::Access::kLocal));
    granted.slots = expose(slots.headers);
    granted.payloads = slots.payloads == slots.headers ? granted.slots : expose(slots.payloads);
  }
  SHOAL_ASSIGN_OR_RETURN(transport::Acceptance acceptance, transport.Accept(offer, connection));
  if ((request.weights_in_gpu() || request.payloads_in_gpu()) &&
      transport::ReachesGpu(transport, gpu) && !reaches_gpu) {
    LogWarning("{} reads weights and pushes over the host: it does not see {}", request.client(),
               gpu);
  }
  configuration.intake->Add(std::make_shared<ClientConnection>(
      options, std::move(acceptance.connection), std::move(slots), std::move(staging), &metrics_));
  return std::move(acceptance.answer);
}

}  // namespace shoal::server
