// HostedJob's GPU: opens the one that holds partitions, and exposes its memory to clients.
#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"
#include "core/transport/shared_region.h"
#include "server/service/hosted_job.h"

namespace shoal::server {

absl::Status HostedJob::OpenGpu() {
  ServerGpu& gpu = gpu_;
  if (job_.service.memory == plan::PartitionMemory::kHost) {
    gpu.make_state = HostState::Create;
    return absl::OkStatus();
  }
  if (options_.open_gpu == nullptr) {
    return Unimplemented("service.memory cuda: this server keeps nothing in GPUs");
  }
  const plan::ReachedInGpu reached = plan::PlanReachedInGpu(job_);
  auto opened = options_.open_gpu(request_.server_index(), reached.weights || reached.slots);
  if (!opened.ok()) {
    return Annotate(opened.status(), "service.memory cuda");
  }
  gpu = *std::move(opened);
  // `workers` is 0 if the job takes as many as there are.
  const int64_t workers = job_.cluster.workers;
  payloads_in_gpu_.emplace(workers > 0 ? workers : options_.max_clients);
  gpu.make_state = [make = std::move(gpu.make_state)](const StateLayout& layout, ThreadPool* pool) {
    auto state = make(layout, pool);
    return state.ok() ? std::move(state) : Annotate(state.status(), "service.memory cuda");
  };
  if (gpu.reach != nullptr) {
    gpu_name_ = transport::GpuName(gpu.reach->gpu(gpu.index).uuid);
  }
  return absl::OkStatus();
}

bool HostedJob::IsReachedInGpu() const {
  return std::ranges::any_of(transports_, [&](const EnabledTransport& enabled) {
    return transport::ReachesGpu(*enabled.transport, gpu_name_);
  });
}

// Transports that cannot expose them keep to the host's.
void HostedJob::ExposeGpuWeights() {
  const JobStore::Extent& first = *store_->extents().front();
  const std::shared_ptr<std::byte>& shared = first.store->shared_weights();
  if (shared == nullptr) {
    return;
  }
  absl::MutexLock lock(&exposed_mutex_);
  for (size_t i = 0; i < transports_.size(); ++i) {
    const EnabledTransport& enabled = transports_[i];
    if (!transport::ReachesGpu(*enabled.transport, gpu_name_)) {
      continue;
    }
    ExposedWeights& weights = exposed_.at(first.region)[i];
    auto exposed = transport::ExposeShared(*enabled.transport, shared, weights.host->bytes().size(),
                                           transport::Access::kRemoteRead);
    if (exposed.ok()) {
      weights.gpu = *std::move(exposed);
    } else {
      LogWarning("clients read weights on the host, {} does not expose those in {}: {}",
                 enabled.transport->name(), gpu_name_, Message(exposed.status()));
    }
  }
}

// The planned use, if clients reach its memory.
proto::ServerGpu HostedJob::DescribeGpuUse(std::span<const plan::PartitionSpec> held) const {
  const plan::Job& job = job_;
  const bool reached = IsReachedInGpu();
  const plan::ReachedInGpu planned = reached ? plan::PlanReachedInGpu(job) : plan::ReachedInGpu();
  const plan::ServerGpuMemory one_client =
      plan::PlanServerMemory(held, slot_bytes_, job.service, /*clients=*/1, planned).gpu;
  proto::ServerGpu gpu;
  gpu.set_gpu(gpu_.name);
  gpu.set_taken_bytes(one_client.total() - one_client.slots);
  gpu.set_client_bytes(one_client.slots);
  return gpu;
}

}  // namespace shoal::server
