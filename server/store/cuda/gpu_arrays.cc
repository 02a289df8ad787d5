#include "server/store/cuda/gpu_arrays.h"

#include <cuda_runtime_api.h>

#include <optional>

#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"

namespace shoal::server::cuda {
namespace {

absl::Status CheckFree(const gpu::CudaContext& context, const plan::ServerGpuMemory& needed) {
  SHOAL_RETURN_IF_ERROR(context.MakeCurrent());
  size_t free = 0;
  size_t total = 0;
  SHOAL_RETURN_IF_ERROR(
      context.Check(cudaMemGetInfo(&free, &total), "asking for what memory is free"));
  if (needed.total() > static_cast<int64_t>(free)) {
    return ResourceExhausted(
        "cuda:{}: this server needs {} of its memory (weights {}, master {}, moments {}, gradients "
        "{}, workspace {}), and {} of {} are free; use more servers on other GPUs, a smaller "
        "model, or service.memory: host",
        context.gpu().index, FormatBytes(needed.total()), FormatBytes(needed.weights),
        FormatBytes(needed.master), FormatBytes(needed.moments), FormatBytes(needed.gradients),
        FormatBytes(needed.workspace), FormatBytes(static_cast<int64_t>(free)),
        FormatBytes(static_cast<int64_t>(total)));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t StatisticsChunks(int64_t count) {
  return (count + kStatisticsChunk - 1) / kStatisticsChunk;
}

absl::Status GpuArrays::Allocate(gpu::CudaContext& context, const StateLayout& layout) {
  const StoreOptions& options = layout.options;
  const plan::ServerGpuMemory needed = plan::PlanServerGpuMemory(
      layout.partitions, options.accumulate,
      options.shared_weights ? options.wire_type : std::optional<DType>());
  SHOAL_RETURN_IF_ERROR(CheckFree(context, needed));
  for (const plan::PartitionSpec& spec : layout.partitions) {
    refused_count_ += options.exact() ? ExactBlocks(spec.count) : 0;
    chunk_count_ += StatisticsChunks(spec.count);
  }
  const auto take = [&](int64_t bytes) {
    return gpu::GpuBuffer::Allocate(context, gpu::GpuBuffer::Kind::kDevice, bytes);
  };
  SHOAL_ASSIGN_OR_RETURN(master_, take(needed.master));
  SHOAL_ASSIGN_OR_RETURN(moments_, take(needed.moments));
  SHOAL_ASSIGN_OR_RETURN(gradients_, take(needed.gradients));
  SHOAL_ASSIGN_OR_RETURN(refused_, take(refused_count_ * int64_t{sizeof(int64_t)}));
  SHOAL_ASSIGN_OR_RETURN(chunks_, take(chunk_count_ * int64_t{sizeof(ChunkStatistics)}));
  Place(layout);
  return absl::OkStatus();
}

void GpuArrays::Place(const StateLayout& layout) {
  const bool exact = layout.options.exact();
  int64_t state = 0;
  int64_t sum = 0;
  int64_t refused = 0;
  int64_t chunk = 0;
  for (const plan::PartitionSpec& spec : layout.partitions) {
    const int64_t bytes = StateArrayBytes(spec.count, sizeof(float));
    partitions_.push_back({.count = spec.count,
                           .state = {master_.as<float>(state), moments_.as<float>(2 * state),
                                     moments_.as<float>(2 * state + bytes)},
                           .sum = exact ? nullptr : gradients_.as<float>(sum),
                           .exact_sum = exact ? gradients_.as<int64_t>(sum) : nullptr,
                           .refused = exact ? refused_.as<int64_t>() + refused : nullptr,
                           .chunks = chunks_.as<ChunkStatistics>() + chunk});
    state += bytes;
    sum += StateArrayBytes(spec.count, layout.options.sum_element());
    refused += exact ? ExactBlocks(spec.count) : 0;
    chunk += StatisticsChunks(spec.count);
  }
}

}  // namespace shoal::server::cuda
