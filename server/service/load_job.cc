// HostedJob::Create: loads a job by its shard map and publishes the weights.
#include <algorithm>
#include <span>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/job/shard_map_message.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/memory/server_memory.h"
#include "core/transport/registry/job_transport.h"
#include "server/checkpoint/checkpoint.h"
#include "server/service/hosted_job.h"

namespace shoal::server {
namespace {

absl::StatusOr<plan::ShardMap> ReadShardMap(const proto::ShardMap& message, int servers,
                                            size_t partitions) {
  plan::ShardMap map = plan::FromMessage(message);
  map.readers.clear();  // clients read
  if (map.servers.size() != partitions) {
    return InvalidArgument(
        "the shard map has {} partitions, the model has {}: the coordinator works with another "
        "model or "
        "another service.partition_bytes",
        map.servers.size(), partitions);
  }
  const auto is_none = [servers](int server) { return server < 0 || server >= servers; };
  for (size_t id = 0; id < partitions; ++id) {
    if (map.servers[id].empty() || std::ranges::any_of(map.servers[id], is_none)) {
      return InvalidArgument(
          "the shard map places partition {} on no server or one that is not there", id);
    }
  }
  return map;
}

int ThreadsFor(const plan::Job& job, int servers, int wanted) {
  if (wanted > 0) {
    return wanted;
  }
  if (job.service.threads_per_server > 0) {
    return static_cast<int>(job.service.threads_per_server);
  }
  return std::max(1, AvailableCores() / (job.cluster.local ? std::max(1, servers) : 1));
}

StoreOptions StoreOptionsOf(const plan::Job& job) {
  return {.wire_type = job.service.wire_type,
          .accumulate = job.service.accumulate,
          .optimizer = {.kind = job.train.optimizer,
                        .weight_decay = job.train.weight_decay,
                        .beta1 = job.train.beta1,
                        .beta2 = job.train.beta2,
                        .epsilon = job.train.epsilon},
          .groups = job.train.groups,
          .backups_publish = job.service.read_replicas};
}

// The source of the state: the job's model as version 0, or a checkpoint.
struct Source {
  int64_t version = 0;
  plan::ModelSpec spec;
  StoreSource state;
};

absl::StatusOr<Source> OpenSource(const plan::Job& job, const std::string& checkpoint_folder) {
  if (checkpoint_folder.empty() && job.service.frozen == plan::Frozen::kFiles) {
    SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, plan::ReadJobModel(job));
    SHOAL_ASSIGN_OR_RETURN(const plan::UnitReader adapters, plan::InitialAdapters(spec, job));
    return Source{.version = 0, .spec = spec, .state = {.master = adapters}};
  }
  if (checkpoint_folder.empty()) {
    SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<formats::HfModel> model,
                           formats::HfModel::Open(job.model));
    const auto base = [model](int unit, int64_t offset, std::span<float> out) {
      return model->ReadUnit(unit, offset, out);
    };
    SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, plan::WithJobAdapters(model->spec(), job));
    plan::UnitReader trained = base;
    if (!spec.adapters.empty()) {
      SHOAL_ASSIGN_OR_RETURN(trained, plan::InitialAdapters(spec, job));
    }
    return Source{.version = 0,
                  .spec = spec,
                  .state = {.master = trained, .m = nullptr, .v = nullptr, .base = base}};
  }
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(checkpoint_folder));
  const auto section = [&](Section which) {
    return [checkpoint, which](int unit, int64_t offset, std::span<float> out) {
      return checkpoint->Read(which, unit, offset, out);
    };
  };
  return Source{.version = checkpoint->manifest().step,
                .spec = checkpoint->manifest().spec,
                .state = {.master = section(Section::kMaster),
                          .m = section(Section::kFirstMoment),
                          .v = section(Section::kSecondMoment),
                          .base = [checkpoint](int unit, int64_t offset, std::span<float> out) {
                            return checkpoint->ReadOnce(Section::kMaster, unit, offset, out);
                          }}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostedJob>> HostedJob::Create(const proto::ConfigureRequest& request,
                                                             const ParameterServiceOptions& options,
                                                             ServerMetrics* metrics,
                                                             rpc::NewestTerm* term) {
  std::unique_ptr<HostedJob> job(new HostedJob(request, options, metrics, term));
  SHOAL_RETURN_IF_ERROR(job->Load());
  return job;
}

HostedJob::~HostedJob() {
  FollowTransports();
  metrics_.AddHeld(counted_partitions_, counted_, -1);
}

absl::Status HostedJob::Load() {
  SHOAL_ASSIGN_OR_RETURN(job_, plan::FromMessage(request_.job(), "the coordinator's job"));
  if (request_.servers() < 1 || request_.server_index() < 0 ||
      request_.server_index() >= request_.servers()) {
    return InvalidArgument("there is no server {} of {}", request_.server_index(),
                           request_.servers());
  }
  SHOAL_ASSIGN_OR_RETURN(Source source, OpenSource(job_, request_.checkpoint()));
  units_ = plan::JobUnits(source.spec, job_.train);
  partitions_ = plan::BuildPartitions(units_, job_.service.partition_bytes);
  if (std::ranges::none_of(partitions_, &plan::PartitionSpec::frozen)) {
    source.state.base = nullptr;  // its files are closed once the state is loaded
  }
  base_ = source.state.base;
  SHOAL_ASSIGN_OR_RETURN(
      const plan::ShardMap map,
      ReadShardMap(request_.shard_map(), request_.servers(), partitions_.size()));
  const std::vector<plan::PartitionSpec> held =
      SpecsOf(plan::PartitionsOf(map, request_.server_index()));
  const std::vector<plan::PartitionSpec> backups =
      SpecsOf(plan::BackupsOf(map, request_.server_index()));

  store_options_ = StoreOptionsOf(job_);
  const StoreBytes backup_bytes = BytesOfBackups(backups);
  const StoreBytes bytes = CountStoreBytes(held, store_options_);
  SHOAL_RETURN_IF_ERROR(OpenGpu());
  SHOAL_RETURN_IF_ERROR(CheckMemory(bytes, backup_bytes));
  std::map<int, int64_t> exposed = {{0, bytes.weights}};
  if (job_.service.read_replicas) {
    exposed[kFirstBackupRegion] = CountStoreBytes(backups, store_options_.OfBackups()).weights;
  }
  SHOAL_RETURN_IF_ERROR(StartTransports(exposed));
  state_slots_ = std::make_unique<StateSlots>(Transports(), unavailable_);
  store_options_.shared_weights = plan::PlanReachedInGpu(job_).weights && IsReachedInGpu();
  const int threads = ThreadsFor(job_, request_.servers(), options_.threads);
  pool_ = std::make_unique<ThreadPool>(threads);
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<Store> first,
      Store::Create(units_, held, store_options_, HostWeights(0), pool_.get(), gpu_.make_state));
  SHOAL_RETURN_IF_ERROR(first->Load(source.version, source.state));
  store_ = std::make_unique<JobStore>(std::move(first));
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Store> first_backups,
                         MakeBackups(backups, kFirstBackupRegion, /*places=*/{}));
  SHOAL_RETURN_IF_ERROR(first_backups->Load(source.version, source.state));
  backups_ = std::make_unique<JobStore>(std::move(first_backups), kFirstBackupRegion);
  ExposeGpuWeights();
  if (!job_.cluster.local) {
    // Remote clients will need host weights, and filling those takes longer than a connection may.
    SHOAL_RETURN_IF_ERROR(store_->KeepHostWeights());
  }
  slot_bytes_ = plan::PushSlotBytes(partitions_, job_.service.gradient_type);
  core_ = std::make_unique<JobCore>(
      JobCore::Options{.gradient_type = job_.service.gradient_type,
                       .run = request_.run(),
                       .generation = map.generation,
                       .partitions = std::ssize(partitions_),
                       .disconnect = [this](uint64_t client) { intake_->Remove(client); }},
      store_.get(), backups_.get(), &term_);
  if (job_.service.replicas > 1) {
    gradients_ = std::make_unique<GradientSender>(
        GradientSender::Options{.job_id = request_.job_id(), .run = request_.run()},
        [this](const proto::ReadStateRequest& wanted) { return ReadState(wanted); },
        options_.connect_backup);
  }
  SHOAL_RETURN_IF_ERROR(StartIntake(threads));
  reply_.set_version(store_->version());
  reply_.set_resident_bytes(bytes.total() + backup_bytes.total());
  if (job_.service.memory == plan::PartitionMemory::kCuda) {
    *reply_.mutable_gpu() = DescribeGpuUse(held);
  }
  FollowExtents();
  metrics_.version.Set(static_cast<double>(store_->version()));
  LogInfo(
      "{}: server {} of {}: {} partitions of {}, {} backups, version {}, {} resident, {} threads",
      request_.job_id(), request_.server_index(), request_.servers(), held.size(),
      partitions_.size(), backups.size(), store_->version(), FormatBytes(bytes.total()), threads);
  return absl::OkStatus();
}

absl::Status HostedJob::StartIntake(int threads) {
  std::vector<std::unique_ptr<transport::EventQueue>> queues;
  for (const EnabledTransport& enabled : transports_) {
    SHOAL_ASSIGN_OR_RETURN(queues.emplace_back(), enabled.transport->CreateQueue());
  }
  intake_ = std::make_unique<PushIntake>(
      [this](const ClientIdentity& client, const transport::PushHeader& header,
             const PushPayload& payload) { return TakePush(client, header, payload); },
      &metrics_, std::move(queues));
  intake_threads_ = std::make_unique<IntakeThreads>(
      IntakeThreads::Options{.threads = threads, .look_over_interval = options_.look_over_interval},
      intake_.get());
  return absl::OkStatus();
}

absl::Status HostedJob::CheckMemory(const StoreBytes& bytes, const StoreBytes& backups) const {
  const absl::StatusOr<int64_t> available = options_.available_memory();
  if (absl::IsInvalidArgument(available.status())) {
    return available.status();  // as given by this process's flags
  }
  if (!available.ok()) {
    LogWarning("cannot tell how much memory this machine has: {}", Message(available.status()));
    return absl::OkStatus();
  }
  // A GPU's memory is checked when allocated.
  const bool on_gpu = job_.service.memory == plan::PartitionMemory::kCuda;
  const int64_t needed = (on_gpu ? bytes.weights : bytes.total()) + backups.total();
  if (needed <= *available) {
    return absl::OkStatus();
  }
  if (on_gpu) {
    return ResourceExhausted(
        "this server needs {} for the weights that clients read{} and the machine has {} "
        "available; "
        "use more servers on other machines, a smaller model, or service.wire_type bf16",
        FormatBytes(needed), backups.total() > 0 ? " and backups" : "", FormatBytes(*available));
  }
  const StoreBytes all = bytes + backups;
  return ResourceExhausted(
      "this server needs {} (weights {}, master {}, moments {}, gradients {}) and the machine "
      "has {} available; use more "
      "servers on other machines, a smaller model, or service.wire_type bf16",
      FormatBytes(needed), FormatBytes(all.weights), FormatBytes(all.master),
      FormatBytes(all.moments), FormatBytes(all.gradients), FormatBytes(*available));
}

absl::Status HostedJob::StartTransports(const std::map<int, int64_t>& exposed) {
  std::vector<EnabledTransport>& enabled = transports_;
  int64_t weights_bytes = 0;
  for (const auto& [region, bytes] : exposed) {
    weights_bytes += bytes;
  }
  for (const std::string& name : job_.service.transports) {
    auto transport = options_.create_transport(name, job_, weights_bytes, gpu_.reach);
    if (transport.ok()) {
      enabled.push_back({.transport = *std::move(transport)});
    } else {
      unavailable_.push_back(fmt::format("{}: {}", name, Message(transport.status())));
      transport::LogUnavailable(name, transport.status());
    }
  }
  if (enabled.empty()) {
    return FailedPrecondition(
        "none of the job's transports can be used: {}; name others in service.transports (`shoal "
        "doctor` on this machine says what is missing)",
        fmt::join(unavailable_, "; "));
  }
  // Continues without a transport that cannot register the weights (locked memory, device limits).
  std::map<int, std::vector<std::shared_ptr<transport::Region>>> regions;
  for (const auto& [region, bytes] : exposed) {
    SHOAL_ASSIGN_OR_RETURN(regions[region], AllocateWeights(bytes));
  }
  FollowTransports();
  absl::MutexLock lock(&exposed_mutex_);
  std::vector<EnabledTransport> all = std::exchange(enabled, {});
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::any_of(regions, [i](const auto& of) { return of.second[i] == nullptr; })) {
      continue;
    }
    enabled.push_back(std::move(all[i]));
    for (const auto& [region, by_transport] : regions) {
      exposed_[region].push_back({.host = by_transport[i]});
    }
  }
  return absl::OkStatus();
}

std::span<std::byte> HostedJob::HostWeights(int region) const {
  absl::MutexLock lock(&exposed_mutex_);
  return exposed_.at(region).front().host->bytes();
}

// All transports share one memory: allocated by one that can only expose its own, if there is one,
// and registered with the others.
absl::StatusOr<std::vector<std::shared_ptr<transport::Region>>> HostedJob::AllocateWeights(
    int64_t bytes) {
  const auto found = std::ranges::find_if(transports_, [](const EnabledTransport& e) {
    return !e.transport->capabilities().exposes_any_memory;
  });
  const auto owner =
      found == transports_.end() ? size_t{0} : static_cast<size_t>(found - transports_.begin());
  std::vector<std::shared_ptr<transport::Region>> regions(transports_.size());
  SHOAL_ASSIGN_OR_RETURN(regions[owner], transports_[owner].transport->Allocate(
                                             bytes, transport::Access::kRemoteRead));
  for (size_t i = 0; i < transports_.size(); ++i) {
    if (i == owner) {
      continue;
    }
    transport::Transport& other = *transports_[i].transport;
    auto registered = other.Register(regions[owner]->bytes(), transport::Access::kRemoteRead);
    if (registered.ok()) {
      regions[i] = *std::move(registered);
    } else {
      const std::string name(other.name());
      unavailable_.push_back(fmt::format("{}: {}", name, Message(registered.status())));
      transport::LogUnavailable(name, registered.status());
    }
  }
  return regions;
}

}  // namespace shoal::server
