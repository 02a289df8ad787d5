#include "server/store/cuda/lent_memory.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "common/logging.h"
#include "common/status.h"
#include "gpu/gpu_buffer.h"
#include "plan/server_memory.h"

namespace shoal::server::cuda {
namespace {

using gpu::CudaContext;
using gpu::GpuBuffer;

struct SharedMemory {
  std::shared_ptr<CudaContext> context;
  GpuBuffer buffer;  // goes first
};

class PinnedMemory final : public PartitionState::Pinned {
 public:
  PinnedMemory(std::shared_ptr<CudaContext> context, gpu::PinnedRange range)
      : context_(std::move(context)), range_(std::move(range)) {}

 private:
  const std::shared_ptr<CudaContext> context_;
  gpu::PinnedRange range_;  // goes first
};

}  // namespace

absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(
    const std::shared_ptr<CudaContext>& context, Lane& lane, int64_t bytes) {
  constexpr const char* kWhat = "clearing shared memory";
  const int64_t whole = plan::SharedGpuBytes(bytes);  // all of it can be read by who opens it
  SHOAL_ASSIGN_OR_RETURN(GpuBuffer buffer,
                         GpuBuffer::Allocate(*context, GpuBuffer::Kind::kDevice, whole));
  const auto memory = std::make_shared<SharedMemory>();
  memory->context = context;
  memory->buffer = std::move(buffer);
  auto* const data = memory->buffer.as<std::byte>();
  absl::MutexLock lock(&lane.mutex);
  SHOAL_RETURN_IF_ERROR(context->MakeCurrent());
  SHOAL_RETURN_IF_ERROR(
      context->Check(cudaMemsetAsync(data, 0, static_cast<size_t>(whole), lane.stream), kWhat));
  SHOAL_RETURN_IF_ERROR(context->Synchronize(lane.stream, kWhat));
  return std::shared_ptr<std::byte>(memory, data);
}

std::unique_ptr<PartitionState::Pinned> Pin(const std::shared_ptr<CudaContext>& context,
                                            std::span<std::byte> memory) {
  absl::StatusOr<gpu::PinnedRange> pinned = gpu::PinnedRange::Pin(*context, memory);
  if (!pinned.ok()) {
    LogWarning("copies from and to the host are slower than they could be: {}",
               Message(pinned.status()));
    return nullptr;
  }
  return std::make_unique<PinnedMemory>(context, *std::move(pinned));
}

}  // namespace shoal::server::cuda
