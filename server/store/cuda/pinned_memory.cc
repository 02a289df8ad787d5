#include "server/store/cuda/pinned_memory.h"

#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/gpu/gpu_buffer.h"

namespace shoal::server::cuda {
namespace {

using gpu::CudaContext;

class PinnedMemory final : public PartitionState::Pinned {
 public:
  PinnedMemory(std::shared_ptr<CudaContext> context, gpu::PinnedRange range)
      : context_(std::move(context)), range_(std::move(range)) {}

 private:
  const std::shared_ptr<CudaContext> context_;
  gpu::PinnedRange range_;  // destroyed first
};

}  // namespace

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
