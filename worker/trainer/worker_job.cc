#include "worker/trainer/worker_job.h"

#include <unistd.h>

#include <algorithm>

#include "common/bytes.h"
#include "common/logging.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "formats/hf_model.h"
#include "plan/partition.h"
#include "plan/stage_units.h"
#include "transport/job_transport.h"
#include "worker/emulated/emulated_model.h"

namespace shoal::worker {
namespace {

DType ComputeType(const plan::Job& job) {
  return job.train.compute == plan::ComputeType::kBf16 ? DType::kBF16 : DType::kF32;
}

// Of the machine; 0 where it does not say.
int64_t MachineBytes() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : 0;
}

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
  SHOAL_RETURN_IF_ERROR(job->OpenTransports());
  SHOAL_RETURN_IF_ERROR(job->Connect(join));
  return job;
}

WorkerJob::~WorkerJob() {
  client_.reset();  // its threads give gradients back to the sink
}

absl::Status WorkerJob::Load(const proto::JoinJobReply& join) {
  SHOAL_ASSIGN_OR_RETURN(job_, plan::ParseJob(join.job_yaml(), "the coordinator's job"));
  if (job_.cluster.pipeline.enabled()) {
    return Unimplemented("the job has cluster.pipeline, which workers do not run yet");
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, formats::ReadModelSpec(job_.model));
  SHOAL_ASSIGN_OR_RETURN(data_, formats::TokenFile::Open(join.token_file()));
  if (data_->vocabulary() > spec.vocabulary) {
    return InvalidArgument("{} was made for a vocabulary of {}, the model in {} has {}",
                           join.token_file(), data_->vocabulary(), job_.model, spec.vocabulary);
  }
  const plan::MemoryBudget budget = {.machine_bytes = job_.cluster.local ? MachineBytes() : 0};
  SHOAL_ASSIGN_OR_RETURN(
      const plan::MemoryPlan plan,
      plan::PlanMemory(spec, job_, join.servers_size(), std::max(1, join.workers()), budget));
  policy_ = plan.policy;
  registered_bytes_ = plan.worker.weights + plan.worker.wire + plan.worker.pushes;
  const int threads = Threads(job_, options_.threads);
  if (job_.emulate.enabled()) {
    model_ = MakeEmulatedModel(spec, job_.emulate, options_.index, clock_);
    LogWarning("{}: emulated device of shape {}; nothing is computed", options_.name,
               job_.emulate.shape);
  } else {
    SHOAL_ASSIGN_OR_RETURN(
        auto transformer,
        Transformer::Create(spec, {.compute = ComputeType(job_), .threads = threads}));
    model_ = MakeTransformerModel(std::move(transformer));
  }
  LogInfo(
      "{}: computing in {} on {} threads; weights kept for the {}, gradients pushed per {}; "
      "{} planned",
      options_.name, Name(ComputeType(job_)), threads,
      policy_.residency == plan::Residency::kStep ? "step" : "layer",
      policy_.push == plan::PushPolicy::kStep ? "step" : "microbatch",
      FormatBytes(plan.worker.total()));
  return absl::OkStatus();
}

absl::Status WorkerJob::OpenTransports() {
  absl::Status last;
  for (const std::string& name : job_.service.transports) {
    auto transport =
        transport::CreateJobTransport(name, job_.service, options_.rdma, {}, registered_bytes_);
    if (!transport.ok()) {
      transport::LogUnavailable(name, transport.status());
      last = transport.status();
      continue;
    }
    transports_.push_back(options_.wrap_transport ? options_.wrap_transport(*std::move(transport))
                                                  : *std::move(transport));
  }
  return transports_.empty() ? last : absl::OkStatus();
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
  const std::vector<plan::UnitSpec>& units = model_->units();
  const plan::UnitRange all = plan::AllUnits(model_->spec());
  const std::vector<int> contributions = plan::StageContributions(model_->spec(), {&all, 1});
  const bool keep = policy_.residency == plan::Residency::kStep;
  client::ClientOptions options;
  options.incarnation = options_.incarnation;
  options.name = options_.name;
  options.compute_type = ComputeType(job_);
  options.gradient_type = job_.service.gradient_type;
  options.keep_for_step = keep;
  options.frames_per_size = plan::FramesPerSize(job_.train);
  options.max_gradients = static_cast<int>(units.size()) + plan::kGradientBuffersPerSize;
  options.seed = options_.incarnation;
  SHOAL_ASSIGN_OR_RETURN(
      client_, client::ParameterClient::Create(
                   options, units, plan::BuildPartitions(units, job_.service.partition_bytes),
                   FromProto(join.shard_map()), static_cast<int>(addresses.size()),
                   connector_.get(), transports));
  meetings_ = std::make_unique<LayerMeetings>(
      job_.train.synchronization == plan::Synchronization::kLayer, client_.get(), &phases_);
  source_ = std::make_unique<ServiceSource>(
      ServiceSource::Options{.compute_type = options.compute_type,
                             .keep_for_step = keep,
                             .prefetch_units = job_.train.prefetch_units,
                             .units = static_cast<int64_t>(units.size())},
      client_.get(), meetings_.get(), &phases_);
  use_order_ = plan::UseOrder(model_->spec());
  SHOAL_ASSIGN_OR_RETURN(
      sink_, ServiceSink::Create({.push_per_step = policy_.push == plan::PushPolicy::kStep,
                                  .push_each_contribution = plan::PushesEachContribution(job_),
                                  .contributions = contributions,
                                  .buffers_per_size = plan::kGradientBuffersPerSize,
                                  .on_done = [this](int unit) { OnUnitDone(unit); }},
                                 units, client_.get(), meetings_.get(), &phases_));
  if (job_.plan.assignment == plan::Assignment::kDynamic) {
    drawer_ = std::make_unique<MicrobatchDrawer>(options_.draw, options_.incarnation, clock_);
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
