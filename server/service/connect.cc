// HostedJob::Connect: chooses a client's transport and grants memory.
#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"
#include "core/transport/negotiate.h"
#include "core/transport/shared_region.h"
#include "server/service/hosted_job.h"

namespace shoal::server {
namespace {

static_assert(plan::kMostPushSlots * sizeof(transport::PushAcknowledgement) <=
              transport::kBufferAlignment);

// Slots, pinned to make copies from them fast.
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
  // Touch every page now: too little memory fails here, and no push waits for pages.
  std::ranges::fill(slots->bytes(), std::byte{0});
  const auto pinned = std::make_shared<PinnedSlots>(PinnedSlots{slots, state.Pin(slots->bytes())});
  return std::shared_ptr<transport::Region>(pinned, pinned->region.get());
}

// Payloads in the server's GPU: one allocation per client, who may write all of it.
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

bool HostedJob::GrantedRegions::in_gpu() const {
  return payloads != slots || std::ranges::any_of(extents, [](const proto::Extent& extent) {
           return extent.weights_region() != extent.headers_region();
         });
}

absl::StatusOr<proto::ConnectReply> HostedJob::Connect(const proto::ConnectRequest& request) {
  absl::MutexLock one_at_a_time(&connect_mutex_);
  SHOAL_RETURN_IF_ERROR(CheckConnect(request));
  SHOAL_ASSIGN_OR_RETURN(proto::ConnectReply reply, Accept(request));
  reply.set_version(core_->state().version());
  if (core_->IsFenced(request.incarnation())) {
    intake_->Remove(request.incarnation());  // Fenced while connecting.
    return PermissionDenied("{} is fenced: its lease is over", request.client());
  }
  return reply;
}

absl::Status HostedJob::CheckConnect(const proto::ConnectRequest& request) {
  SHOAL_RETURN_IF_ERROR(core_->CheckClient(request));
  if (intake_->connections() >= options_.max_clients) {
    return ResourceExhausted(
        "{} cannot connect: {} clients are connected, which is the limit (--max-clients)",
        request.client(), options_.max_clients);
  }
  return absl::OkStatus();
}

// Weights first: those of what goes meanwhile are among them still, and nothing comes.
HostedJob::Grantable HostedJob::FindGrantable() const {
  Grantable grantable;
  {
    absl::MutexLock lock(&exposed_mutex_);
    grantable.weights = exposed_;
  }
  grantable.places = store_->regions();
  grantable.places.merge(backups_->regions());
  std::erase_if(grantable.weights, [&grantable](const auto& region) {
    return !grantable.places.contains(region.first);
  });
  std::erase_if(grantable.places, [&grantable](const auto& region) {  // nobody reads it
    return !grantable.weights.contains(region.first);
  });
  return grantable;
}

absl::StatusOr<proto::ConnectReply> HostedJob::Accept(const proto::ConnectRequest& request) {
  // Drop the earlier connection first, so that one client never holds slots twice.
  intake_->Remove(request.incarnation());
  const Grantable grantable = FindGrantable();
  GrantedRegions granted;
  SHOAL_ASSIGN_OR_RETURN(
      transport::TakenOffer taken,
      transport::TakeOffer(
          transport::NamesOf(Transports()), transport::ReadOffers(request.offers()),
          request.client(), unavailable_, [&](size_t index, const std::string& offer) {
            auto answer = AcceptOver(index, request, offer, grantable.weights, granted);
            // Registering slots may have changed the transport's totals.
            metrics_.FollowTransport(*transports_[index].transport, transports_[index].counted);
            return answer;
          }));
  proto::ConnectReply reply;
  reply.set_transport(taken.transport);
  reply.set_answer(std::move(taken.answer));
  const std::string& preferred = job_.service.transports.front();
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
  reply.mutable_extents()->Add(granted.extents.begin(), granted.extents.end());
  reply.set_slots_region(granted.slots);
  reply.set_payloads_region(granted.payloads);
  reply.set_gpu(granted.in_gpu() ? gpu_name_ : "");
  reply.set_slots(pushes ? job_.service.push_slots : 0);
  reply.set_slot_bytes(pushes ? slot_bytes_ : 0);
  reply.set_wire_type(static_cast<uint32_t>(job_.service.wire_type));
  AddLocations({store_.get(), backups_.get()}, grantable.places, reply);
  return reply;
}

absl::StatusOr<ClientConnection::Slots> HostedJob::MakeSlots(transport::Transport& transport,
                                                             const ClientIdentity& client,
                                                             int64_t bytes, bool in_gpu) {
  ClientConnection::Slots slots;
  if (store_->extents().empty()) {  // nothing is here to be pushed to
    SHOAL_ASSIGN_OR_RETURN(slots.headers,
                           transport.Allocate(bytes, transport::Access::kRemoteWrite));
    slots.payloads = slots.headers;
    return slots;
  }
  PartitionState& state = store_->extents().front()->store->state();
  if (in_gpu) {
    auto payloads = AllocatePayloads(transport, state, *payloads_in_gpu_, client.name, bytes);
    if (payloads.ok()) {
      // Only headers are used of the host's region.
      SHOAL_ASSIGN_OR_RETURN(slots.headers,
                             transport.Allocate(bytes, transport::Access::kRemoteWrite));
      slots.payloads = *std::move(payloads);
      slots.place = PayloadMemory::kShared;
      return slots;
    }
    LogWarning("{} pushes over the host, not into {}: {}", client.name, gpu_name_,
               Message(payloads.status()));
  }
  SHOAL_ASSIGN_OR_RETURN(slots.headers, AllocateSlots(transport, state, bytes));
  slots.payloads = slots.headers;
  return slots;
}

absl::StatusOr<std::string> HostedJob::AcceptOver(size_t index,
                                                  const proto::ConnectRequest& request,
                                                  const std::string& offer,
                                                  const ExposedRegions& exposed,
                                                  GrantedRegions& granted) {
  transport::Transport& transport = *transports_[index].transport;
  const std::string& gpu = gpu_name_;
  const plan::ReachedInGpu reached = plan::PlanReachedInGpu(job_);
  const bool reaches_gpu = transport::ReachesGpu(transport, gpu) &&
                           std::ranges::find(request.gpus(), gpu) != request.gpus().end();
  granted = {};
  transport::ConnectionOptions connection = {.queue = intake_->queue(index),
                                             .peer = request.client()};
  const auto expose = [&](std::shared_ptr<transport::Region> region) {
    connection.exposed.push_back(std::move(region));
    return static_cast<int>(connection.exposed.size()) - 1;
  };
  bool all_in_gpu = true;
  for (const auto& [region, by_transport] : exposed) {
    const ExposedWeights& weights = by_transport[index];
    proto::Extent& regions = granted.extents.emplace_back();
    regions.set_headers_region(expose(weights.host));
    const bool in_gpu = reaches_gpu && request.weights_in_gpu() && weights.gpu != nullptr;
    regions.set_weights_region(in_gpu ? expose(weights.gpu) : regions.headers_region());
    // Other regions than the first lie on the host alone, and are filled there anyway.
    all_in_gpu = all_in_gpu && (in_gpu || region != 0);
  }
  if (!all_in_gpu) {
    SHOAL_RETURN_IF_ERROR(store_->KeepHostWeights());
  }
  ClientConnection::Options options = {
      .client = {.incarnation = request.incarnation(), .name = request.client()},
      .transport = std::string(transport.name()),
      .writes_in_order = transport.capabilities().writes_in_order};
  ClientConnection::Slots slots;
  std::shared_ptr<transport::Region> staging;
  if (!request.read_only()) {
    options.slots = job_.service.push_slots;
    options.slot_bytes = slot_bytes_;
    SHOAL_ASSIGN_OR_RETURN(slots,
                           MakeSlots(transport, options.client, options.slots * options.slot_bytes,
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
  intake_->Add(std::make_shared<ClientConnection>(options, std::move(acceptance.connection),
                                                  std::move(slots), std::move(staging), &metrics_));
  return std::move(acceptance.answer);
}

}  // namespace shoal::server
