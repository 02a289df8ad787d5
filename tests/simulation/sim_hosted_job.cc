// A job at a simulated server: how it is loaded, what is pinned of it, and how clients reach it.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "tests/simulation/sim_servers.h"

namespace shoal::simulation {
namespace {

constexpr int64_t kSlots = 2;
constexpr int64_t kSlotBytes = 512;  // for the largest partition
constexpr absl::Duration kLookOver = absl::Milliseconds(50);

server::StoreOptions StoreOptionsOf(const plan::Job& job) {
  return {.accumulate = job.service.accumulate,
          .adamw = {.weight_decay = job.train.weight_decay,
                    .beta1 = job.train.beta1,
                    .beta2 = job.train.beta2,
                    .epsilon = job.train.epsilon}};
}

std::vector<plan::PartitionSpec> HeldBy(const proto::ConfigureRequest& request,
                                        const SimModel& model) {
  std::vector<plan::PartitionSpec> held;
  const plan::ShardMap map = plan::FromMessage(request.shard_map());
  for (const int id : plan::PartitionsOf(map, request.server_index())) {
    held.push_back(model.partitions()[static_cast<size_t>(id)]);
  }
  return held;
}

// Of a state of all parameters.
server::StoreSource SourceOf(const SimModel& model, const ModelState& state) {
  const auto reader = [&](server::StateArray array) {
    return [&model, &values = state.of(array)](int unit, int64_t offset, std::span<float> out) {
      const size_t place = model.PlaceOf({.unit = unit, .offset = offset});
      std::ranges::copy_n(values.begin() + static_cast<std::ptrdiff_t>(place), std::ssize(out),
                          out.begin());
      return absl::OkStatus();
    };
  };
  return {.master = reader(server::StateArray::kMaster),
          .m = reader(server::StateArray::kFirstMoment),
          .v = reader(server::StateArray::kSecondMoment)};
}

}  // namespace

SimHostedJob::SimHostedJob(proto::ConfigureRequest request, proto::ConfigureReply reply, SimJob& of,
                           rpc::NewestTerm* term, SimServers& all, int server)
    : job(of), request_(std::move(request)), reply_(std::move(reply)), all_(all), server_(server) {
  transport_ = all_.fabric_.MakeTransport(
      all_.process(server_), [this] { TakeTurns(); }, [this] { LookOverLater(); });
  const SimModel& model = job.model();
  std::unique_ptr<server::Store> first = MakeStore(HeldBy(request_, model), 0);
  const auto [version, state] = job.Saved(request_.checkpoint());
  SHOAL_CHECK(first->Load(version, SourceOf(model, state)).ok());
  store = std::make_unique<server::JobStore>(std::move(first));
  reply_.set_version(version);
  core = std::make_unique<server::JobCore>(
      server::JobCore::Options{.generation = request_.shard_map().generation(),
                               .partitions = request_.shard_map().partitions_size(),
                               .disconnect = [this](uint64_t client) { intake_->Remove(client); }},
      store.get(), term);
  std::vector<std::unique_ptr<transport::EventQueue>> queues;
  queues.push_back(*transport_->CreateQueue());
  intake_ = std::make_unique<server::PushIntake>(
      [this](const server::ClientIdentity& client, const transport::PushHeader& header,
             const server::PushPayload& payload) { return TakePush(client, header, payload); },
      &all_.server_metrics_, std::move(queues));
}

std::unique_ptr<server::Store> SimHostedJob::MakeStore(const std::vector<plan::PartitionSpec>& held,
                                                       int number) {
  const server::StoreOptions options = StoreOptionsOf(job.description());
  weights_[number] = *transport_->Allocate(server::CountStoreBytes(held, options).weights,
                                           transport::Access::kRemoteRead);
  return *server::Store::Create(job.model().units(), held, options, weights_[number]->bytes(),
                                &all_.pool_);
}

absl::StatusOr<int64_t> SimHostedJob::ReserveExtent(const proto::ReserveRequest& wanted) {
  std::vector<plan::PartitionSpec> comes;
  for (const int id : wanted.partitions()) {
    comes.push_back(job.model().partitions()[static_cast<size_t>(id)]);
  }
  std::ranges::sort(comes, {}, &plan::PartitionSpec::id);
  store->DropArriving();
  FollowExtents();
  store->Arrive(MakeStore(comes, store->next_number()));
  return server::CountStoreBytes(comes, StoreOptionsOf(job.description())).total();
}

void SimHostedJob::FollowExtents() {
  std::erase_if(weights_, [this](const auto& weights) {
    const int number = weights.first;
    return (store->arriving() == nullptr || store->arriving()->number != number) &&
           std::ranges::none_of(store->extents(),
                                [number](const auto& extent) { return extent->number == number; });
  });
}

// The bytes are there at once; whether the giver can be reached is the network's to say.
absl::Status SimHostedJob::FetchExtent(const proto::FetchRequest& wanted) {
  std::map<int, server::StateGiver> givers;
  for (const proto::PartitionSource& source : wanted.sources()) {
    for (const int id : source.partitions()) {
      givers[id] = {.name = source.address(), .read = all_.ReaderOf(server_, source.address())};
    }
  }
  server::Store& arriving = *store->arriving()->store;
  std::vector<plan::PartitionSpec> comes;
  for (const auto& partition : arriving.partitions()) {
    comes.push_back(partition->spec());
  }
  proto::ReadStateRequest read;
  read.set_job_id(wanted.job_id());
  read.set_run(request_.run());
  read.set_version(wanted.version());
  return arriving.Load(wanted.version(), server::FetchedFrom(comes, givers, read));
}

void SimHostedJob::TakeTurns() {
  while (intake_->Turn(0)) {
  }
}

// Twice: a push is taken that was there at the look before.
void SimHostedJob::LookOverLater() {
  for (int look = 1; look <= 2; ++look) {
    all_.process(server_).After(look * kLookOver, [this, here = std::weak_ptr(here_)] {
      if (!here.expired()) {
        intake_->LookOver();
        TakeTurns();
      }
    });
  }
}

server::PushVerdict SimHostedJob::TakePush(const server::ClientIdentity& client,
                                           const transport::PushHeader& header,
                                           const server::PushPayload& payload) {
  if (all_.context_.faults.Fires("a push is acknowledged and lost", all_.context_.loop.now())) {
    return {};
  }
  const server::PushVerdict verdict = core->TakePush(client, header, payload);
  if (verdict.code == absl::StatusCode::kOk && !verdict.applied_before) {
    all_.on_pushed(server_, client.incarnation);
  }
  return verdict;
}

absl::StatusOr<proto::ConnectReply> SimHostedJob::Connect(const proto::ConnectRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(core->CheckClient(wanted));
  intake_->Remove(wanted.incarnation());
  proto::ConnectReply reply;
  SHOAL_ASSIGN_OR_RETURN(*reply.mutable_answer(), Accept(wanted));
  reply.set_transport(wanted.offers(0).transport());
  for (const auto& extent : store->extents()) {
    const int region = reply.extents_size();
    proto::Extent& regions = *reply.add_extents();
    regions.set_headers_region(region);
    regions.set_weights_region(region);
    SHOAL_CHECK(weights_.contains(extent->number));
  }
  reply.set_slots_region(reply.extents_size());
  reply.set_payloads_region(reply.extents_size());
  reply.set_slots(kSlots);
  reply.set_slot_bytes(kSlotBytes);
  reply.set_wire_type(static_cast<uint32_t>(DType::kF32));
  reply.set_version(core->state().version());
  server::AddLocations(*store, reply);
  return reply;
}

absl::StatusOr<std::string> SimHostedJob::Accept(const proto::ConnectRequest& wanted) {
  server::ClientConnection::Slots slots;
  SHOAL_ASSIGN_OR_RETURN(
      slots.headers, transport_->Allocate(kSlots * kSlotBytes, transport::Access::kRemoteWrite));
  slots.payloads = slots.headers;
  SHOAL_ASSIGN_OR_RETURN(
      std::shared_ptr<transport::Region> staging,
      transport_->Allocate(kSlots * int64_t{sizeof(transport::PushAcknowledgement)},
                           transport::Access::kLocal));
  transport::ConnectionOptions connection = {.queue = intake_->queue(0), .peer = wanted.client()};
  for (const auto& extent : store->extents()) {
    connection.exposed.push_back(weights_.at(extent->number));
  }
  connection.exposed.push_back(slots.headers);
  SHOAL_ASSIGN_OR_RETURN(transport::Acceptance acceptance,
                         transport_->Accept(wanted.offers(0).offer(), connection));
  intake_->Add(std::make_shared<server::ClientConnection>(
      server::ClientConnection::Options{
          .client = {.incarnation = wanted.incarnation(), .name = wanted.client()},
          .transport = std::string(transport_->name()),
          .slots = kSlots,
          .slot_bytes = kSlotBytes,
          .writes_in_order = true},
      std::move(acceptance.connection), std::move(slots), std::move(staging),
      &all_.server_metrics_));
  return std::move(acceptance.answer);
}

absl::Status SimHostedJob::Pin(const proto::WriteCheckpointRequest& wanted, Nanoseconds now,
                               Nanoseconds written) {
  return core->Pin(wanted, [&]() -> absl::Status {
    std::optional<server::PinnedCheckpoint> newest;
    if (checkpoint.has_value()) {
      newest = checkpoint->what;
      newest->done = checkpoint->written <= now;
      const auto folder = job.disk().shards.find(newest->directory);
      if (folder != job.disk().shards.end()) {
        const auto shard = folder->second.find(wanted.server());
        newest->kept = shard != folder->second.end() && shard->second == checkpoint->shard;
      }
    }
    SHOAL_ASSIGN_OR_RETURN(const bool pins,
                           server::PinsCheckpoint(wanted, newest, store->version()));
    if (pins) {
      Checkpoint& pinned = checkpoint.emplace();
      pinned.what.version = wanted.version();
      pinned.what.directory = wanted.directory();
      pinned.shard = WriteShard(*store);
      pinned.written = written;
      // Where it ends before that, a part of the file stays.
      const auto folder = job.disk().shards.find(wanted.directory());
      if (folder != job.disk().shards.end()) {
        folder->second[wanted.server()] = pinned.shard.substr(0, pinned.shard.size() / 2);
      }
    }
    return absl::OkStatus();
  });
}

void SimHostedJob::GiveUpCheckpoint(Nanoseconds now) {
  if (checkpoint.has_value() && checkpoint->written > now) {
    checkpoint.reset();
  }
}

}  // namespace shoal::simulation
