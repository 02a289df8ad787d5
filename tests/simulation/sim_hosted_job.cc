// A job at a simulated server: how it is loaded, what is pinned of it, and how clients reach it.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "server/copy/gradient_sender.h"
#include "tests/simulation/process_ids.h"
#include "tests/simulation/sim_servers.h"

namespace shoal::simulation {
namespace {

constexpr int64_t kSlots = 2;
constexpr int64_t kSlotBytes = 512;  // for the largest partition
constexpr absl::Duration kLookOver = absl::Milliseconds(50);

server::StoreOptions StoreOptionsOf(const plan::Job& job) {
  return {.accumulate = job.service.accumulate,
          .optimizer = {.kind = job.train.optimizer,
                        .weight_decay = job.train.weight_decay,
                        .beta1 = job.train.beta1,
                        .beta2 = job.train.beta2,
                        .epsilon = job.train.epsilon},
          .backups_publish = job.service.read_replicas};
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
  const plan::ShardMap map = plan::FromMessage(request_.shard_map());
  const auto held = SpecsOf(plan::PartitionsOf(map, request_.server_index()));
  const auto backed = SpecsOf(plan::BackupsOf(map, request_.server_index()));
  const server::StoreOptions options = StoreOptionsOf(job.description());
  AllocateWeights(held, options, 0);
  AllocateWeights(backed, options.OfBackups(), server::kFirstBackupRegion);
  auto first = MakeStore(held, options, 0, nullptr);
  auto first_backups = MakeStore(backed, options.OfBackups(), server::kFirstBackupRegion, nullptr);
  const auto [version, state] = job.Saved(request_.checkpoint());
  for (server::Store* const loads : {first.get(), first_backups.get()}) {
    SHOAL_CHECK(loads->Load(version, SourceOf(model, state)).ok());
  }
  store = std::make_unique<server::JobStore>(std::move(first));
  backups =
      std::make_unique<server::JobStore>(std::move(first_backups), server::kFirstBackupRegion);
  reply_.set_version(version);
  core = std::make_unique<server::JobCore>(
      server::JobCore::Options{.run = request_.run(),
                               .generation = request_.shard_map().generation(),
                               .partitions = static_cast<int>(map.servers.size()),
                               .disconnect = [this](uint64_t client) { intake_->Remove(client); }},
      store.get(), backups.get(), term);
  std::vector<std::unique_ptr<transport::EventQueue>> queues;
  queues.push_back(*transport_->CreateQueue());
  intake_ = std::make_unique<server::PushIntake>(
      [this](const server::ClientIdentity& client, const transport::PushHeader& header,
             const server::PushPayload& payload) { return TakePush(client, header, payload); },
      &all_.server_metrics_, std::move(queues));
}

void SimHostedJob::AllocateWeights(const std::vector<plan::PartitionSpec>& held,
                                   const server::StoreOptions& options, int region) {
  if (options.publishes()) {
    const int64_t bytes = server::CountStoreBytes(held, options).weights;
    weights_[region] = *transport_->Allocate(bytes, transport::Access::kRemoteRead);
  }
}

std::unique_ptr<server::Store> SimHostedJob::MakeStore(const std::vector<plan::PartitionSpec>& held,
                                                       const server::StoreOptions& options,
                                                       int region, const server::JobStore* of) {
  std::vector<server::WeightsOffsets> places;
  if (of != nullptr && options.publishes()) {
    const server::JobStore::Places reserved = of->places(region);
    for (const plan::PartitionSpec& spec : held) {
      places.push_back(reserved.at(spec.id));
    }
  }
  const auto weights = options.publishes() ? weights_.at(region)->bytes() : std::span<std::byte>();
  return *server::Store::Create(job.model().units(), held, options, weights, &all_.pool_,
                                server::HostState::Create, places);
}

template <typename Ids>
std::vector<plan::PartitionSpec> SimHostedJob::SpecsOf(const Ids& ids) const {
  std::vector<plan::PartitionSpec> specs;
  for (const int id : ids) {
    specs.push_back(job.model().partitions()[static_cast<size_t>(id)]);
  }
  std::ranges::sort(specs, {}, &plan::PartitionSpec::id);
  return specs;
}

absl::StatusOr<int64_t> SimHostedJob::ReserveExtents(const proto::ReserveRequest& wanted) {
  store->DropArriving();
  backups->DropArriving();
  FollowExtents();
  const server::StoreOptions options = StoreOptionsOf(job.description());
  const std::vector<plan::PartitionSpec> comes = SpecsOf(wanted.partitions());
  const auto reserve = [this](server::JobStore& in, const auto& some, const auto& with) {
    if (!some.empty()) {
      const int region = in.Reserve(server::PlacesOf(some, with));
      if (!weights_.contains(region)) {
        AllocateWeights(some, with, region);
      }
    }
  };
  reserve(*store, comes, options);
  reserve(*backups, SpecsOf(wanted.backups()), options.OfBackups());
  return server::CountStoreBytes(comes, options).total();
}

void SimHostedJob::FollowExtents() {
  std::erase_if(weights_, [this](const auto& weights) {
    return !store->HasRegion(weights.first) && !backups->HasRegion(weights.first);
  });
}

template <typename Request>
std::map<int, server::StateGiver> SimHostedJob::GiversOf(const Request& wanted) {
  std::map<int, server::StateGiver> givers;
  for (const proto::PartitionSource& source : wanted.sources()) {
    for (const int id : source.partitions()) {
      givers[id] = {
          .name = source.address(),
          .read = source.address().empty()
                      ? server::StateReader([this](const auto& read, std::span<float> out) {
                          return server::TakeElements(core->ReadState(read), out);
                        })
                      : all_.ReaderOf(server_, source.address())};
    }
  }
  return givers;
}

// The bytes are there at once; whether the giver can be reached is the network's to say.
absl::Status SimHostedJob::FetchExtents(const proto::FetchRequest& wanted) {
  const std::map<int, server::StateGiver> givers = GiversOf(wanted);
  proto::ReadStateRequest read;
  read.set_job_id(wanted.job_id());
  read.set_run(request_.run());
  read.set_version(wanted.version());
  const server::StoreOptions options = StoreOptionsOf(job.description());
  const auto make = [this](const server::JobStore* of, const server::StoreOptions& with) {
    return
        [this, of, with](const auto& comes) { return MakeStore(comes, with, of->reserved(), of); };
  };
  return server::FetchReserved({{store.get(), make(store.get(), options)},
                                {backups.get(), make(backups.get(), options.OfBackups())}},
                               job.model().partitions(), givers, read, /*base=*/nullptr,
                               &all_.pool_);
}

absl::Status SimHostedJob::FetchGradients(const proto::ReplicateRequest& wanted) {
  std::vector<plan::PartitionSpec> comes;
  for (const server::JobStore::Held& held : backups->held()) {
    comes.push_back(held.partition->spec());
  }
  proto::ReadStateRequest read;
  read.set_job_id(wanted.job_id());
  read.set_run(request_.run());
  read.set_version(wanted.step() - 1);
  read.set_attempt(wanted.attempt());
  return backups->LoadGradient(server::GradientsFrom(comes, GiversOf(wanted), read, &all_.pool_));
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
  if (verdict.complete) {
    SendGradient(header.partition, header);
  }
  return verdict;
}

void SimHostedJob::SendGradient(int partition, const transport::PushHeader& header) {
  proto::TakeGradientRequest of;
  of.set_job_id(request_.job_id());
  of.set_run(request_.run());
  of.set_step(header.step);
  of.set_attempt(header.attempt);
  const plan::PartitionSpec& spec = job.model().partitions()[static_cast<size_t>(partition)];
  for (const std::string& address : backed_at[partition]) {
    const auto piece = server::NextPiece(
        spec, 0, of, [this](const auto& wanted) { return core->ReadState(wanted); });
    SHOAL_CHECK(piece.ok() && piece->elements().size() == spec.count * sizeof(float));
    const int backup = ServerAt(address);
    all_.context_.network.Call<bool>(
        all_.process(server_), all_.process(backup), {.repeats = false, .owner = here_},
        [all = &all_, backup, piece = *piece](const auto& answer) {
          const auto taken = all->server(backup).TakeGradient(piece);
          if (taken.ok() && !taken->late()) {
            all->on_gradient(backup, piece);
          }
          answer(taken.ok());
        },
        [](const auto&) {});
  }
}

server::JobStore::Regions SimHostedJob::ExposedRegions() const {
  server::JobStore::Regions exposed = store->regions();
  if (job.description().service.read_replicas) {
    exposed.merge(backups->regions());
  }
  return exposed;
}

absl::StatusOr<proto::ConnectReply> SimHostedJob::Connect(const proto::ConnectRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(core->CheckClient(wanted));
  intake_->Remove(wanted.incarnation());
  proto::ConnectReply reply;
  SHOAL_ASSIGN_OR_RETURN(*reply.mutable_answer(), Accept(wanted));
  reply.set_transport(wanted.offers(0).transport());
  const server::JobStore::Regions exposed = ExposedRegions();
  while (reply.extents_size() < static_cast<int>(exposed.size())) {
    const int region = reply.extents_size();
    proto::Extent& regions = *reply.add_extents();
    regions.set_headers_region(region);
    regions.set_weights_region(region);
  }
  reply.set_slots_region(reply.extents_size());
  reply.set_payloads_region(reply.extents_size());
  reply.set_slots(kSlots);
  reply.set_slot_bytes(kSlotBytes);
  reply.set_wire_type(static_cast<uint32_t>(DType::kF32));
  reply.set_version(core->state().version());
  server::AddLocations({store.get(), backups.get()}, exposed, reply);
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
  for (const auto& [region, places] : ExposedRegions()) {
    connection.exposed.push_back(weights_.at(region));
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
