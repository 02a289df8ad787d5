#include "worker/job/job_context.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/memory/host_memory.h"
#include "core/base/status.h"
#include "core/base/threads/thread_pool.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/job/model_files_message.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/model_files.h"
#include "core/plan/pipeline/job_pipeline.h"
#include "core/rpc/server_gpu.h"

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

// What servers take of the worker's GPU, by their own account.
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
    // The same GPU is on this host, whatever the server calls the host.
    servers.taken += gpu.taken_bytes();
    servers.slots += gpu.client_bytes() * std::max(1, gpu.clients());
  }
  return servers;
}

absl::StatusOr<std::unique_ptr<formats::TokenFile>> OpenData(const std::string& path,
                                                             const JobContext& context) {
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<formats::TokenFile> file, formats::TokenFile::Open(path));
  if (file->vocabulary() > context.spec.vocabulary) {
    return InvalidArgument("{} was made for a vocabulary of {}, the model in {} has {}", path,
                           file->vocabulary(), context.job.model, context.spec.vocabulary);
  }
  return file;
}

// The model in a folder of this machine, which has the files of the job's.
absl::StatusOr<std::unique_ptr<formats::HfModel>> OpenModel(const proto::JoinJobReply& join,
                                                            const std::string& folder) {
  auto model = formats::OpenSame(folder, plan::FromMessage(join.model_files()));
  if (!model.ok()) {
    return absl::Status(
        model.status().code(),
        fmt::format("{}; with service.frozen: files workers read the job's model themselves: copy "
                    "it to that path of this machine, or say service.frozen: servers",
                    Message(model.status())));
  }
  return model;
}

absl::Status Load(const proto::JoinJobReply& join, JobContext& context) {
  SHOAL_ASSIGN_OR_RETURN(context.job, plan::FromMessage(join.job(), "the coordinator's job"));
  context.gpu_job = transport::IsGpuJob(context.job);
  SHOAL_ASSIGN_OR_RETURN(context.spec, plan::ReadJobModel(context.job));
  context.units = plan::JobUnits(context.spec, context.job.train);
  if (context.spec.from_files) {
    SHOAL_ASSIGN_OR_RETURN(context.model, OpenModel(join, context.job.model));
  }
  context.may_exchange = plan::MayExchange(context.job);
  context.stages_may_exchange = plan::StagesMayExchange(context.job);
  SHOAL_ASSIGN_OR_RETURN(context.data, OpenData(join.token_file(), context));
  if (context.job.data.validation.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(context.validation, OpenData(join.validation_file(), context));
  }
  if (context.job.cluster.pipeline.enabled()) {
    SHOAL_ASSIGN_OR_RETURN(context.group, GroupFrom(join, context.options.incarnation));
    SHOAL_ASSIGN_OR_RETURN(context.pipeline,
                           plan::FromMessage(join.pipeline(), context.spec, context.job));
    if (context.group.stages() != context.pipeline->choice.stages) {
      return InvalidArgument("the coordinator makes a group of {} stages, the job has {}",
                             context.group.stages(), context.pipeline->choice.stages);
    }
  }
  return absl::OkStatus();
}

// From here on the job names the device that this worker computes on.
absl::Status OpenOwnDevice(JobContext& context, OpenedDevice& opened) {
  const bool named = context.options.device.kind != plan::DeviceKind::kAuto;
  const DeviceRequest request = {
      .kind = named ? context.options.device.kind : context.job.train.device,
      .gpu = context.options.device.gpu,
      .sharing = context.options.device.sharing,
      .threads = Threads(context.job, context.options.threads),
      .deterministic = context.job.service.accumulate == plan::Accumulate::kExact};
  if (context.job.emulate.enabled()) {
    context.job.train.device = plan::DeviceKind::kCpu;
    return absl::OkStatus();
  }
  if (context.options.open_device) {
    SHOAL_ASSIGN_OR_RETURN(opened, context.options.open_device(request));
  } else {
    opened.compute_device = MakeCpuComputeDevice(request.threads);
  }
  const Device& device = *opened.compute_device.device;
  context.job.train.device =
      device.asynchronous() ? plan::DeviceKind::kCuda : plan::DeviceKind::kCpu;
  if (device.asynchronous() && context.job.lora.dropout > 0) {
    return FailedPrecondition("lora.dropout is not for GPUs yet: leave it out, or compute on CPUs");
  }
  if (device.asynchronous()) {
    LogInfo("{}: computing in {} on {}", context.options.name,
            Name(plan::ComputeDType(context.job)), device.name());
  } else {
    LogInfo("{}: computing in {} on {} threads", context.options.name,
            Name(plan::ComputeDType(context.job)), request.threads);
  }
  return absl::OkStatus();
}

absl::Status PlanMemory(const proto::JoinJobReply& join, const OpenedDevice& opened,
                        JobContext& context) {
  plan::MemoryBudget budget;
  if (context.job.train.device == plan::DeviceKind::kCuda) {
    budget.gpu_bytes = opened.compute_device.device->budget_bytes();
    SHOAL_ASSIGN_OR_RETURN(budget.servers, ServersOnGpu(join, opened.gpu_name));
    budget.gpu_workers = context.options.device.sharing;
    budget.gpu_share_bytes = opened.gpu_share_bytes;
  }
  if (context.job.cluster.local) {
    SHOAL_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
    budget.machine_bytes = memory.total;
  }
  std::vector<plan::StageNeeds> stages;
  if (context.pipeline.has_value()) {
    SHOAL_ASSIGN_OR_RETURN(stages,
                           plan::StageNeedsOf(context.spec, context.job, context.pipeline->choice,
                                              context.pipeline->heaviest));
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::MemoryPlan plan,
                         plan::PlanMemory(context.spec, context.job, join.servers_size(),
                                          std::max(1, join.workers()), budget, stages));
  const plan::WorkerMemory& own = plan.stages[static_cast<size_t>(context.group.stage)];
  context.policy = plan.policy;
  context.registered_bytes = own.weights + own.wire + own.messages + own.pushes;
  LogInfo("{}: weights kept for the {}, gradients pushed per {}; {} planned{}",
          context.options.name,
          context.policy.residency == plan::Residency::kStep ? "step" : "layer",
          context.policy.push == plan::PushPolicy::kStep ? "step" : "microbatch",
          FormatBytes(own.total()),
          own.gpu.total() == 0
              ? ""
              : fmt::format(" on the host, {} on the GPU", FormatBytes(own.gpu.total())));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const JobContext>> MakeJobContext(
    const proto::JoinJobReply& join, const WorkerJobOptions& options, WorkerMetrics* metrics,
    Clock* clock, TimeKindClock* time_kinds, OpenedDevice* opened) {
  auto context = std::make_unique<JobContext>(
      JobContext{.options = options, .metrics = metrics, .clock = clock, .time_kinds = time_kinds});
  SHOAL_RETURN_IF_ERROR(Load(join, *context));
  SHOAL_RETURN_IF_ERROR(OpenOwnDevice(*context, *opened));
  SHOAL_RETURN_IF_ERROR(PlanMemory(join, *opened, *context));
  return context;
}

}  // namespace shoal::worker
