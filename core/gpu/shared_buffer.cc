#include "core/gpu/shared_buffer.h"

#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/gpu/caching_pool.h"
#include "core/gpu/gpu_buffer.h"

namespace shoal::gpu {
namespace {

struct SharedBuffer {
  std::shared_ptr<CudaContext> context;
  GpuBuffer buffer;  // destroyed first
};

}  // namespace

absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(std::shared_ptr<CudaContext> context,
                                                          cudaStream_t stream, int64_t bytes) {
  constexpr const char* kWhat = "clearing shared memory";
  const int64_t whole = RoundUp(bytes, CachingPool::kGranule);
  auto memory = std::make_shared<SharedBuffer>();
  memory->context = std::move(context);
  CudaContext& gpu = *memory->context;
  SHOAL_ASSIGN_OR_RETURN(memory->buffer, GpuBuffer::Allocate(gpu, GpuBuffer::Kind::kDevice, whole));
  auto* const data = memory->buffer.as<std::byte>();
  SHOAL_RETURN_IF_ERROR(
      gpu.Check(cudaMemsetAsync(data, 0, static_cast<size_t>(whole), stream), kWhat));
  SHOAL_RETURN_IF_ERROR(gpu.Synchronize(stream, kWhat));
  return std::shared_ptr<std::byte>(std::move(memory), data);
}

}  // namespace shoal::gpu
