#include "worker/job/worker_job.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/memory/host_memory.h"
#include "core/base/status.h"
#include "core/base/threads/thread_pool.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/pipeline/job_pipeline.h"
#include "core/rpc/server_gpu.h"
#include "core/transport/registry/job_transport.h"
#include "worker/paced/emulated_model.h"
#include "worker/peers/peer_meeting.h"

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

// As they say themselves.
absl::StatusOr<plan::ServersOnGpu> ServersOnGpu(const proto::JoinJobReply& join,
                                                const std::string& gpu_name) {
  plan::ServersOnGpu servers;
  for (const proto::ServerAddress& server : join.servers()) {
    const proto::ServerGpu& gpu = server.gpu();
    if (gpu_name.empty() || gpu.gpu() != gpu_name) {
      continue;
    }
    if (const absl::Status sound = rpc::CheckServerGpu(gpu); !sound.ok()) {
      return Annotate(sound, fmt::format("server-{}, as the coordinator tells it", server.index()));
    }
    // This worker is on its host, whatever their names for it.
    servers.taken += gpu.taken_bytes();
    servers.slots += gpu.client_bytes() * std::max(1, gpu.clients());
  }
  return servers;
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
  SHOAL_ASSIGN_OR_RETURN(job_, plan::FromMessage(join.job(), "the coordinator's job"));
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
    SHOAL_ASSIGN_OR_RETURN(pipeline_, plan::FromMessage(join.pipeline(), spec_, job_));
    if (group_.stages() != pipeline_->choice.stages) {
      return InvalidArgument("the coordinator makes a group of {} stages, the job has {}",
                             group_.stages(), pipeline_->choice.stages);
    }
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
    SHOAL_ASSIGN_OR_RETURN(budget.servers, ServersOnGpu(join, machine_.gpu_name));
    budget.gpu_workers = options_.device.sharing;
    budget.gpu_share_bytes = machine_.gpu_share_bytes;
  }
  if (job_.cluster.local) {
    SHOAL_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
    budget.machine_bytes = memory.total;
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
  } else if (stage_->copies_between_gpus()) {
    LogInfo(
        "{}: messages between stages are copied from GPU to GPU where both open the other's: {}",
        options_.name, stage_->why_not());
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

}  // namespace shoal::worker
