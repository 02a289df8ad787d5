// HostedJob's partitions that come and go while the job trains (server/copy/).
#include <algorithm>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"
#include "server/service/hosted_job.h"

namespace shoal::server {
namespace {

// A connection reaches transport::kMaxExposedRegions, and a job has others besides.
constexpr size_t kMostRegions = 100;

static_assert(kReadsAtOnce * kStateSlotBytes == plan::kStateLinkBytes);

absl::Status CheckGivers(std::span<const plan::PartitionSpec> comes,
                         const std::map<int, StateGiver>& givers) {
  for (const plan::PartitionSpec& partition : comes) {
    if (!givers.contains(partition.id)) {
      return InvalidArgument("nobody is named who has partition {}", partition.id);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<plan::PartitionSpec> HostedJob::SpecsOf(std::span<const int> ids) const {
  std::vector<plan::PartitionSpec> specs;
  for (const int id : ids) {
    specs.push_back(partitions_[static_cast<size_t>(id)]);
  }
  std::ranges::sort(specs, {}, &plan::PartitionSpec::id);
  return specs;
}

StoreBytes HostedJob::BytesOfBackups(std::span<const plan::PartitionSpec> backups) const {
  return backups.empty() ? StoreBytes() : CountStoreBytes(backups, store_options_.OfBackups());
}

absl::StatusOr<std::unique_ptr<Store>> HostedJob::MakeBackups(
    std::span<const plan::PartitionSpec> backups, int region,
    std::span<const WeightsOffsets> places) const {
  const StoreOptions options = store_options_.OfBackups();
  const bool published = options.publishes();
  return Store::Create(units_, backups, options,
                       published ? HostWeights(region) : std::span<std::byte>(), pool_.get(),
                       HostState::Create, published ? places : std::span<const WeightsOffsets>());
}

absl::StatusOr<proto::ReserveReply> HostedJob::Reserve(const proto::ReserveRequest& request) {
  const absl::MutexLock no_handshake(&connect_mutex_);  // to which nothing is to be added
  return core_->Reserve(request, [&] { return ReserveExtents(request); });
}

absl::StatusOr<int64_t> HostedJob::ReserveExtents(const proto::ReserveRequest& request) {
  const auto specs_of = [this](const google::protobuf::RepeatedField<int32_t>& ids) {
    return SpecsOf({ids.data(), static_cast<size_t>(ids.size())});
  };
  const std::vector<plan::PartitionSpec> comes = specs_of(request.partitions());
  const std::vector<plan::PartitionSpec> backups = specs_of(request.backups());
  for (const auto* const specs : {&comes, &backups}) {
    if (std::ranges::adjacent_find(*specs, {}, &plan::PartitionSpec::id) != specs->end()) {
      return InvalidArgument("partitions are to come to this server, and one twice");
    }
  }
  if (comes.empty() && backups.empty()) {
    return InvalidArgument("partitions are to come to this server that are none");
  }
  store_->DropArriving();
  backups_->DropArriving();
  FollowExtents();
  const StoreOptions of_backups = store_options_.OfBackups();
  const StoreBytes bytes = BytesToReserve(*store_, comes, store_options_);
  const StoreBytes backup_bytes = BytesToReserve(*backups_, backups, of_backups);
  SHOAL_RETURN_IF_ERROR(CheckMemory(bytes, backup_bytes));
  SHOAL_RETURN_IF_ERROR(CheckGpuMemory(comes));
  SHOAL_RETURN_IF_ERROR(ReserveIn(*store_, comes, store_options_, bytes.weights));
  SHOAL_RETURN_IF_ERROR(ReserveIn(*backups_, backups, of_backups, backup_bytes.weights));
  FollowExtents();
  const int64_t total = bytes.total() + backup_bytes.total();
  LogInfo("{} reserved for {} partitions and {} backups that come", FormatBytes(total),
          comes.size(), backups.size());
  return total;
}

absl::Status HostedJob::CheckGpuMemory(std::span<const plan::PartitionSpec> comes) const {
  if (job_.service.memory == plan::PartitionMemory::kHost) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const int64_t free, gpu_.free_bytes());
  const int64_t needed = plan::PlanServerGpuMemory(comes, job_.service.accumulate).total();
  return needed <= free
             ? absl::OkStatus()
             : ResourceExhausted("{} partitions that come need {} of {}, which has {} free",
                                 comes.size(), FormatBytes(needed), gpu_.name, FormatBytes(free));
}

// Weights of what an earlier wave has reserved have their memory.
StoreBytes HostedJob::BytesToReserve(const JobStore& store,
                                     std::span<const plan::PartitionSpec> comes,
                                     const StoreOptions& options) {
  StoreBytes bytes = comes.empty() ? StoreBytes() : CountStoreBytes(comes, options);
  if (options.publishes() && store.FindReserved(PlacesOf(comes, options)) >= 0) {
    bytes.weights = 0;
  }
  return bytes;
}

absl::Status HostedJob::ReserveIn(JobStore& store, std::span<const plan::PartitionSpec> comes,
                                  const StoreOptions& options, int64_t weights_bytes) {
  const JobStore::Places places = PlacesOf(comes, options);
  if (options.publishes() && weights_bytes > 0) {
    return ReserveRegion(store, places, weights_bytes);
  }
  if (!comes.empty()) {
    store.Reserve(places);
  }
  return absl::OkStatus();
}

absl::Status HostedJob::ReserveRegion(JobStore& store, const JobStore::Places& places,
                                      int64_t bytes) {
  const size_t regions_there = FindGrantable().places.size();
  if (regions_there >= kMostRegions) {
    return ResourceExhausted(
        "what it holds came in {} moves, and connections reach no more; a job that is resumed has "
        "it in one",
        regions_there);
  }
  SHOAL_ASSIGN_OR_RETURN(const auto regions, AllocateWeights(bytes));
  const auto refuses = std::ranges::find(regions, nullptr);
  if (refuses != regions.end()) {
    return ResourceExhausted(
        "{} cannot expose {} more to clients",
        transports_[static_cast<size_t>(refuses - regions.begin())].transport->name(),
        FormatBytes(bytes));
  }
  const int number = store.Reserve(places);
  {
    absl::MutexLock lock(&exposed_mutex_);
    for (const auto& region : regions) {
      exposed_[number].push_back({.host = region});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Store>> HostedJob::MakeArriving(
    const JobStore& of, std::span<const plan::PartitionSpec> comes) const {
  const int region = of.reserved();
  const JobStore::Places reserved = of.places(region);
  std::vector<WeightsOffsets> places;
  for (const plan::PartitionSpec& spec : comes) {
    places.push_back(reserved.at(spec.id));
  }
  if (&of == backups_.get()) {
    return MakeBackups(comes, region, places);
  }
  StoreOptions options = store_options_;
  options.shared_weights = false;
  return Store::Create(units_, comes, options, HostWeights(region), pool_.get(), gpu_.make_state,
                       places);
}

absl::StatusOr<proto::FetchReply> HostedJob::Fetch(const proto::FetchRequest& request) {
  return core_->Fetch(request, [&] { return FetchExtents(request); });
}

// Of a server's address; of none: this one.
StateReader HostedJob::ReaderOf(const std::string& address) {
  if (address.empty()) {
    return [this](const proto::ReadStateRequest& request, std::span<float> out) {
      return TakeElements(ReadState(request), out);
    };
  }
  std::shared_ptr<StateLink>& link = givers_[address];
  if (link == nullptr) {
    link = std::make_shared<StateLink>(
        StateLink::Options{.giver = address,
                           .reader = fmt::format("server-{}", request_.server_index()),
                           .job_id = request_.job_id(),
                           .run = request_.run(),
                           .transports = Transports(),
                           .clock = options_.clock},
        options_.connect_server(address));
  }
  return [link](const proto::ReadStateRequest& request, std::span<float> out) {
    return link->Read(request, out);
  };
}

std::vector<transport::Transport*> HostedJob::Transports() const {
  std::vector<transport::Transport*> transports;
  for (const EnabledTransport& enabled : transports_) {
    transports.push_back(enabled.transport.get());
  }
  return transports;
}

template <typename Request>
std::map<int, StateGiver> HostedJob::GiversOf(const Request& request) {
  std::map<int, StateGiver> givers;
  for (const proto::PartitionSource& source : request.sources()) {
    const StateGiver giver = {.name = source.address().empty() ? "this server" : source.address(),
                              .read = ReaderOf(source.address())};
    for (const int id : source.partitions()) {
      givers[id] = giver;
    }
  }
  return givers;
}

// Lets go of the others, who may be gone.
template <typename Request>
void HostedJob::KeepGiversOf(const Request& request) {
  std::erase_if(givers_, [&request](const auto& giver) {
    return std::ranges::find(request.sources(), giver.first, &proto::PartitionSource::address) ==
           request.sources().end();
  });
}

absl::Status HostedJob::FetchExtents(const proto::FetchRequest& request) {
  if (backups_->held().empty()) {  // else Replicate says, at each step
    KeepGiversOf(request);
  }
  const std::map<int, StateGiver> givers = GiversOf(request);
  proto::ReadStateRequest wanted;
  wanted.set_job_id(request.job_id());
  wanted.set_run(request_.run());
  wanted.set_version(request.version());
  ThreadPool readers(kReadsAtOnce);
  const absl::Status fetched = FetchReserved(
      {{store_.get(), [this](const auto& all) { return MakeArriving(*store_, all); }},
       {backups_.get(), [this](const auto& all) { return MakeArriving(*backups_, all); }}},
      partitions_, givers, wanted, base_, &readers);
  FollowExtents();
  return fetched;
}

absl::StatusOr<proto::ReplicateReply> HostedJob::Replicate(const proto::ReplicateRequest& request) {
  return core_->Replicate(request, [&] { return FetchGradients(request); });
}

absl::Status HostedJob::FetchGradients(const proto::ReplicateRequest& request) {
  KeepGiversOf(request);
  const std::map<int, StateGiver> givers = GiversOf(request);
  std::vector<plan::PartitionSpec> comes;
  for (const JobStore::Held& held : backups_->held()) {
    comes.push_back(held.partition->spec());
  }
  SHOAL_RETURN_IF_ERROR(CheckGivers(comes, givers));
  proto::ReadStateRequest wanted;
  wanted.set_job_id(request.job_id());
  wanted.set_run(request_.run());
  wanted.set_version(request.step() - 1);
  wanted.set_attempt(request.attempt());
  ThreadPool readers(kReadsAtOnce);
  return backups_->LoadGradient(GradientsFrom(comes, givers, wanted, &readers));
}

absl::Status HostedJob::CheckRun(int64_t run) const {
  return run == request_.run()
             ? absl::OkStatus()
             : FailedPrecondition("state of run {} is wanted, this server has run {}", run,
                                  request_.run());
}

absl::StatusOr<proto::ReadStateReply> HostedJob::ReadState(const proto::ReadStateRequest& request) {
  SHOAL_RETURN_IF_ERROR(CheckRun(request.run()));
  return state_slots_->Fill(
      request, [&](std::span<std::byte> slot) { return core_->ReadState(request, slot); });
}

absl::StatusOr<proto::ConnectStateReply> HostedJob::ConnectState(
    const proto::ConnectStateRequest& request) {
  SHOAL_RETURN_IF_ERROR(CheckRun(request.run()));
  return state_slots_->Connect(request);
}

absl::StatusOr<proto::TakeGradientReply> HostedJob::TakeGradient(
    const proto::TakeGradientRequest& request) {
  if (request.run() != request_.run()) {
    return FailedPrecondition("a gradient of run {} comes, this server has run {}", request.run(),
                              request_.run());
  }
  return core_->TakeGradient(request);
}

StoreBytes HostedJob::BytesHeld() const {
  StoreBytes held;
  {
    absl::MutexLock lock(&exposed_mutex_);
    for (const auto& [region, weights] : exposed_) {
      held.weights += std::ssize(weights.front().host->bytes());
    }
  }
  const auto add = [&held](const JobStore::Extent& extent) {
    std::vector<plan::PartitionSpec> specs;
    for (const auto& partition : extent.store->partitions()) {
      if (partition != nullptr) {
        specs.push_back(partition->spec());
      }
    }
    const StoreOptions& options = extent.store->options();
    StoreBytes bytes = specs.empty() ? StoreBytes() : CountStoreBytes(specs, options);
    bytes.weights = options.publishes() ? 0 : bytes.weights;  // those are in a region
    held = held + bytes;
  };
  for (const JobStore* const store : {store_.get(), backups_.get()}) {
    for (const auto& extent : store->extents()) {
      add(*extent);
    }
    if (store->arriving() != nullptr) {
      add(*store->arriving());
    }
  }
  return held;
}

void HostedJob::FollowExtents() {
  {
    absl::MutexLock lock(&exposed_mutex_);
    std::erase_if(exposed_, [this](const auto& region) {
      return !store_->HasRegion(region.first) && !backups_->HasRegion(region.first);
    });
  }
  const int64_t partitions = std::ssize(store_->held());
  const StoreBytes now = BytesHeld();
  const StoreBytes before = std::exchange(counted_, now);
  metrics_.AddHeld(partitions - std::exchange(counted_partitions_, partitions),
                   {.weights = now.weights - before.weights,
                    .master = now.master - before.master,
                    .moments = now.moments - before.moments,
                    .gradients = now.gradients - before.gradients});
}

}  // namespace shoal::server
