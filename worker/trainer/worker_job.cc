#include "worker/trainer/worker_job.h"

#include <algorithm>

#include "common/bytes.h"
#include "common/host_memory.h"
#include "common/logging.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "formats/hf_model.h"
#include "plan/partition.h"
#include "plan/pipeline/job_pipeline.h"
#include "plan/stage_units.h"
#include "transport/job_transport.h"
#include "worker/emulated/emulated_model.h"
#include "worker/trainer/client_memory.h"
#include "worker/trainer/collective_sink.h"
#include "worker/trainer/collective_source.h"
#include "worker/trainer/device_sink.h"
#include "worker/trainer/device_source.h"
#include "worker/trainer/peer_meeting.h"
#include "worker/trainer/service_sink.h"
#include "worker/trainer/service_source.h"

namespace shoal::worker {
namespace {

int Threads(const plan::Job& job, int flag) {
  if (flag > 0) {
    return flag;
  }
  if (job.train.threads_per_worker > 0) {
    return static_cast<int>(job.train.threads_per_worker);
  }
  const int64_t sharing = job.cluster.local ? std::max<int64_t>(1, job.cluster.workers) : 1;
  return static_cast<int>(std::max<int64_t>(1, AvailableCores() / sharing));
}

plan::ShardMap FromProto(const proto::ShardMap& message) {
  plan::ShardMap map{.generation = message.generation()};
  for (const proto::PartitionServers& partition : message.partitions()) {
    map.servers.emplace_back(partition.servers().begin(), partition.servers().end());
  }
  return map;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerJob>> WorkerJob::Create(const proto::JoinJobReply& join,
                                                             const WorkerJobOptions& options,
                                                             WorkerMetrics* metrics, Clock& clock) {
  std::unique_ptr<WorkerJob> job(new WorkerJob(options, metrics, clock));
  SHOAL_RETURN_IF_ERROR(job->Load(join));
  SHOAL_RETURN_IF_ERROR(job->TakeMachine());
  SHOAL_RETURN_IF_ERROR(job->PlanMemory(join));
  SHOAL_RETURN_IF_ERROR(job->OpenTransports());
  SHOAL_RETURN_IF_ERROR(job->MakeModel());
  SHOAL_RETURN_IF_ERROR(job->MeetPeers(join));
  SHOAL_RETURN_IF_ERROR(job->Connect(join));
  return job;
}

WorkerJob::~WorkerJob() {
  if (exchange_ != nullptr) {  // what others do not come to must not be waited for
    exchange_->Disconnect();
  }
  if (stage_ != nullptr) {
    stage_->Disconnect();
  }
  source_.reset();
  if (sink_ != nullptr) {
    sink_->EndStep().IgnoreError();  // it calls the client no more
  }
  client_.reset();  // its threads give gradients back to the sink
}

void WorkerJob::Cancel(const absl::Status& why) {
  client_->Cancel(why);
  source_->Cancel(why);
  sink_->Cancel(why);
  if (exchange_ != nullptr) {
    exchange_->Cancel(why);
  }
  if (stage_ != nullptr) {
    stage_->Cancel(why);
  }
}

absl::Status WorkerJob::Load(const proto::JoinJobReply& join) {
  SHOAL_ASSIGN_OR_RETURN(job_, plan::ParseJob(join.job_yaml(), "the coordinator's job"));
  gpu_job_ = transport::IsGpuJob(job_);
  SHOAL_ASSIGN_OR_RETURN(spec_, formats::ReadModelSpec(job_.model));
  units_ = plan::BuildUnits(spec_);
  may_exchange_ = plan::MayExchange(job_);
  stages_may_exchange_ = plan::StagesMayExchange(job_);
  SHOAL_ASSIGN_OR_RETURN(data_, formats::TokenFile::Open(join.token_file()));
  if (data_->vocabulary() > spec_.vocabulary) {
    return InvalidArgument("{} was made for a vocabulary of {}, the model in {} has {}",
                           join.token_file(), data_->vocabulary(), job_.model, spec_.vocabulary);
  }
  if (job_.cluster.pipeline.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(group_, GroupFrom(join, options_.incarnation));
    SHOAL_ASSIGN_OR_RETURN(pipeline_, PipelineFrom(join, spec_, job_));
  }
  return absl::OkStatus();
}

// From here on the job says what this worker computes on.
absl::Status WorkerJob::TakeMachine() {
  const bool named = options_.device.kind != plan::DeviceKind::kAuto;
  const MachineRequest request = {
      .kind = named ? options_.device.kind : job_.train.device,
      .gpu = options_.device.gpu,
      .sharing = options_.device.sharing,
      .threads = Threads(job_, options_.threads),
      .deterministic = job_.service.accumulate == plan::Accumulate::kExact};
  if (job_.emulate.enabled()) {
    job_.train.device = plan::DeviceKind::kCpu;
    return absl::OkStatus();
  }
  if (options_.open_machine) {
    SHOAL_ASSIGN_OR_RETURN(machine_, options_.open_machine(request));
  } else {
    machine_.machine = MakeCpuMachine(request.threads);
  }
  const Device& device = *machine_.machine.device;
  job_.train.device = device.asynchronous() ? plan::DeviceKind::kCuda : plan::DeviceKind::kCpu;
  if (device.asynchronous()) {
    LogInfo("{}: computing in {} on {}", options_.name, Name(plan::ComputeDType(job_)),
            device.name());
  } else {
    LogInfo("{}: computing in {} on {} threads", options_.name, Name(plan::ComputeDType(job_)),
            request.threads);
  }
  return absl::OkStatus();
}

absl::Status WorkerJob::PlanMemory(const proto::JoinJobReply& join) {
  plan::MemoryBudget budget;
  if (job_.train.device == plan::DeviceKind::kCuda) {
    budget.gpu_bytes = machine_.machine.device->budget_bytes();
  }
  if (job_.cluster.local) {
    SHOAL_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
    budget.machine_bytes = memory.total;
    budget.gpu = machine_.turn;
  }
  std::vector<plan::StageNeeds> stages;
  if (pipeline_.has_value()) {
    SHOAL_ASSIGN_OR_RETURN(stages,
                           plan::StageNeedsOf(spec_, job_, pipeline_->choice, pipeline_->heaviest));
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::MemoryPlan plan,
                         plan::PlanMemory(spec_, job_, join.servers_size(),
                                          std::max(1, join.workers()), budget, stages));
  const plan::WorkerMemory& own = plan.stages[static_cast<size_t>(group_.stage)];
  policy_ = plan.policy;
  registered_bytes_ = own.weights + own.wire + own.messages + own.pushes;
  LogInfo("{}: weights kept for the {}, gradients pushed per {}; {} planned{}", options_.name,
          policy_.residency == plan::Residency::kStep ? "step" : "layer",
          policy_.push == plan::PushPolicy::kStep ? "step" : "microbatch", FormatBytes(own.total()),
          own.gpu.total() == 0
              ? ""
              : fmt::format(" on the host, {} on the GPU", FormatBytes(own.gpu.total())));
  return absl::OkStatus();
}

absl::Status WorkerJob::OpenTransports() {
  absl::Status last;
  transport::TransportOptions options = options_.transports;
  options.gpu_memory = machine_.reach;
  options.gpu_job = gpu_job_;
  for (const std::string& name : job_.service.transports) {
    auto transport = transport::CreateJobTransport(name, job_.service, options_.rdma, options,
                                                   registered_bytes_);
    if (!transport.ok()) {
      transport::LogUnavailable(name, transport.status());
      unavailable_.push_back(fmt::format("{}: {}", name, Message(transport.status())));
      last = transport.status();
      continue;
    }
    transports_.push_back(options_.wrap_transport ? options_.wrap_transport(*std::move(transport))
                                                  : *std::move(transport));
  }
  return transports_.empty() ? last : absl::OkStatus();
}

absl::Status WorkerJob::MakeModel() {
  if (job_.emulate.enabled()) {
    model_ = MakeEmulatedModel(spec_, job_.emulate, options_.index, clock_);
    LogWarning("{}: emulated device of shape {}; nothing is computed", options_.name,
               job_.emulate.shape);
    return absl::OkStatus();
  }
  const bool copies = machine_.machine.device->asynchronous();
  if (!pipeline_.has_value()) {
    SHOAL_ASSIGN_OR_RETURN(auto transformer, Transformer::Create(spec_, plan::ComputeDType(job_),
                                                                 std::move(machine_.machine)));
    device_ = copies ? &transformer->device() : nullptr;
    compute_ = copies ? &transformer->ops().stream() : nullptr;
    model_ = MakeTransformerModel(std::move(transformer));
    return absl::OkStatus();
  }
  StageJob::Options options{.group = group_,
                            .pipeline = *pipeline_,
                            .unavailable = unavailable_,
                            .door = options_.stage_door,
                            .may_exchange = stages_may_exchange_,
                            .open_collectives = machine_.open_collectives,
                            .check = [this] { return client_->CheckAttempt(); },
                            .cancellation = options_.cancellation,
                            .phases = &phases_,
                            .clock = &clock_};
  for (const auto& transport : transports_) {
    options.transports.push_back(transport.get());
  }
  if (group_.stages() > 1) {
    options.port = options_.stage_port(group_);
  }
  SHOAL_ASSIGN_OR_RETURN(
      stage_, StageJob::Create(spec_, job_, std::move(machine_.machine), std::move(options)));
  device_ = copies ? stage_->device() : nullptr;
  compute_ = copies ? stage_->compute() : nullptr;
  if (!stage_->library().empty()) {
    LogInfo("{}: messages between stages go from GPU to GPU by {}", options_.name,
            stage_->library());
  } else if (device_ != nullptr && group_.stages() > 1) {
    LogWarning("{}: messages between stages go through memory of the host, over transports: {}",
               options_.name, stage_->why_not());
    metrics_->OnNoExchange();
  }
  return absl::OkStatus();
}

absl::Status WorkerJob::MeetPeers(const proto::JoinJobReply& join) {
  if (!may_exchange_ || join.workers() < 2) {
    return absl::OkStatus();
  }
  std::string why = join.without_peers();
  if (join.peers_size() > 0) {
    SHOAL_ASSIGN_OR_RETURN(StageGroup peers, PeersFrom(join, options_.incarnation));
    LayerExchange::Options options{
        .peers = peers,
        .port = options_.stage_port(peers),
        .door = &options_.stage_door->peers(),
        .collectives = OpenCollectives(device_, machine_.open_collectives),
        .device = device_,
        .generation = join.shard_map().generation(),
        .cancellation = options_.cancellation,
        .check = [this] { return client_->CheckAttempt(); },
    };
    SHOAL_ASSIGN_OR_RETURN(exchange_, LayerExchange::Create(std::move(options)));
    why = exchange_->why_not();
  }
  if (exchanges()) {
    LogInfo("{}: layers are gathered and summed among {} workers by {}", options_.name,
            exchange_->ranks(), exchange_->library());
  } else if (device_ != nullptr) {
    LogWarning("{}: workers meet at layers over the servers, with gets and pushes: {}",
               options_.name, why);
    metrics_->OnNoExchange();
  }
  return absl::OkStatus();
}

absl::Status WorkerJob::Connect(const proto::JoinJobReply& join) {
  std::vector<std::string> addresses;
  for (const proto::ServerAddress& server : join.servers()) {
    if (server.index() != static_cast<int>(addresses.size())) {
      return Internal("the coordinator names server-{} where server-{} was due", server.index(),
                      addresses.size());
    }
    addresses.push_back(server.address());
  }
  connector_ = options_.connector(addresses);
  std::vector<transport::Transport*> transports;
  for (const auto& transport : transports_) {
    transports.push_back(transport.get());
  }
  const plan::UnitRange all = plan::AllUnits(spec_);
  contributions_ = stage_ == nullptr ? plan::StageContributions(spec_, {&all, 1})
                                     : plan::StageContributions(spec_, stage_->chunks());
  client::ClientOptions options;
  options.incarnation = options_.incarnation;
  options.name = options_.name;
  options.compute_type = plan::ComputeDType(job_);
  options.gradient_type = job_.service.gradient_type;
  options.units = OwnUnits();
  options.keep_for_step = policy_.residency == plan::Residency::kStep;
  const std::vector<plan::PartitionSpec> partitions =
      plan::BuildPartitions(units_, job_.service.partition_bytes);
  if (exchanges()) {
    shards_ = plan::ShardUnits(units_, partitions, exchange_->rank(), exchange_->ranks());
    options.ranges = shards_.whole();
    std::erase_if(options.units, [&](int unit) { return shards_.of(unit).own.count == 0; });
  }
  if (device_ != nullptr) {
    pinned_ = device_->NewHostMemory(0);
    SHOAL_RETURN_IF_ERROR(ChooseWays(transports));
    options.keep_for_step = exchanges() || (options.keep_for_step && ways_.get);  // else the device
    options.view_memory = ways_.view_memory;
    options.push_in_place = ways_.push;
    options.weights_in_gpu = ways_.get;
    options.payloads_in_gpu = ways_.push;
    // A server that keeps weights in its GPU makes a copy on the host first for whoever cannot open
    // them there: gigabytes, while the connection waits.
    options.connect_timeout =
        std::max(options.connect_timeout, absl::Seconds(job_.cluster.start_timeout_seconds));
    transports = ways_.transports;
  }
  options.frames_per_size = plan::FramesPerSize(job_.train);
  options.max_gradients = static_cast<int>(units_.size()) + plan::kGradientBuffersPerSize;
  options.seed = options_.incarnation;
  SHOAL_ASSIGN_OR_RETURN(client_,
                         client::ParameterClient::Create(
                             options, units_, partitions, FromProto(join.shard_map()),
                             static_cast<int>(addresses.size()), connector_.get(), transports));
  LogServersInGpus();
  meetings_ = std::make_unique<LayerMeetings>(
      job_.train.synchronization == plan::Synchronization::kLayer && !exchanges(), client_.get(),
      &phases_);
  use_order_ = plan::UseOrder(spec_);
  SHOAL_RETURN_IF_ERROR(MakeSourceAndSink());
  if (job_.plan.assignment == plan::Assignment::kDynamic) {
    drawer_ = std::make_unique<MicrobatchDrawer>(options_.draw, options_.incarnation, clock_);
  }
  return absl::OkStatus();
}

absl::Status WorkerJob::ChooseWays(const std::vector<transport::Transport*>& transports) {
  SHOAL_ASSIGN_OR_RETURN(ways_, ChooseDirectWays({.device = device_,
                                                  .pinned = pinned_.get(),
                                                  .transports_reach = machine_.reach != nullptr,
                                                  .compute_type = plan::ComputeDType(job_),
                                                  .wire_type = job_.service.wire_type,
                                                  .gradient_type = job_.service.gradient_type,
                                                  .local = job_.cluster.local},
                                                 transports));
  ways_.push =
      ways_.push && !exchanges();  // a shard's gradient goes in whole partitions of the host
  const auto way = [](bool direct) { return direct ? "directly" : "through pinned memory"; };
  LogInfo("{}: weights get into the memory of {} {}, gradients out of it {}{}{}", options_.name,
          device_->name(), way(ways_.get), way(ways_.push), ways_.why.empty() ? "" : ": ",
          ways_.why);
  return absl::OkStatus();
}

void WorkerJob::LogServersInGpus() const {
  const std::vector<client::ClientStatistics::Connection> servers =
      client_->statistics().connections;
  const auto count = [&](bool client::ClientStatistics::Connection::*in_gpu) {
    return std::ranges::count(servers, true, in_gpu);
  };
  const auto weights = count(&client::ClientStatistics::Connection::weights_in_gpu);
  const auto payloads = count(&client::ClientStatistics::Connection::payloads_in_gpu);
  if (weights + payloads > 0) {
    LogInfo("{}: from GPU to GPU: weights of {} and gradients to {} of {} servers", options_.name,
            weights, payloads, servers.size());
  }
}

std::vector<int> WorkerJob::OwnUnits() const {
  std::vector<int> own;
  for (const plan::UnitSpec& unit : units_) {
    if (contributions_[static_cast<size_t>(unit.index)] > 0) {
      own.push_back(unit.index);
    }
  }
  return own;
}

absl::Status WorkerJob::MakeSourceAndSink() {
  const DType compute = plan::ComputeDType(job_);
  const StepUses::Options uses = {.keep_for_step = policy_.residency == plan::Residency::kStep,
                                  .prefetch_units = job_.train.prefetch_units,
                                  .units = static_cast<int64_t>(units_.size())};
  const PushRule::Options rule = {.push_per_step = policy_.push == plan::PushPolicy::kStep,
                                  .push_each_contribution = plan::PushesEachContribution(job_),
                                  .contributions = contributions_,
                                  .on_done = [this](int unit) { OnUnitDone(unit); }};
  if (exchanges()) {
    SHOAL_ASSIGN_OR_RETURN(
        source_, CollectiveSource::Create({.compute_type = compute,
                                           .uses = uses,
                                           .frames_per_size = plan::FramesPerSize(job_.train)},
                                          units_, shards_, device_, compute_, client_.get(),
                                          exchange_.get(), meetings_.get(), &phases_));
    SHOAL_ASSIGN_OR_RETURN(
        sink_,
        CollectiveSink::Create({.rule = rule, .buffers_per_size = plan::kGradientBuffersPerSize},
                               units_, shards_, device_, compute_, pinned_.get(), client_.get(),
                               exchange_.get(), &phases_));
    return absl::OkStatus();
  }
  if (device_ == nullptr) {
    source_ = std::make_unique<ServiceSource>(
        ServiceSource::Options{.compute_type = compute, .uses = uses}, client_.get(),
        meetings_.get(), &phases_);
    SHOAL_ASSIGN_OR_RETURN(
        sink_,
        ServiceSink::Create({.rule = rule, .buffers_per_size = plan::kGradientBuffersPerSize},
                            units_, client_.get(), meetings_.get(), &phases_));
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(
      source_,
      DeviceSource::Create({.compute_type = compute,
                            .uses = uses,
                            .units = OwnUnits(),
                            .frames_per_size = plan::FramesPerSize(job_.train),
                            .landed = ways_.get},
                           units_, device_, compute_, client_.get(), meetings_.get(), &phases_));
  SHOAL_ASSIGN_OR_RETURN(
      sink_,
      DeviceSink::Create(
          {.rule = rule,
           .buffers_per_size = plan::kGradientBuffersPerSize,
           .in_place = ways_.push ? ways_.transports : std::vector<transport::Transport*>()},
          units_, device_, compute_, pinned_.get(), client_.get(), meetings_.get(), &phases_));
  return absl::OkStatus();
}

}  // namespace shoal::worker
