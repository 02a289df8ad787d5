#include "server/store/cuda/staging_stream.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"

namespace shoal::server::cuda {

absl::Status StagingStream::Open(gpu::CudaContext& context, const StateLayout& layout) {
  using gpu::GpuBuffer;
  constexpr int64_t kFloat = sizeof(float);
  int64_t largest = 0;
  for (const plan::PartitionSpec& spec : layout.partitions) {
    largest = std::max(largest, spec.count);
  }
  staging_elements = std::min(largest, plan::kServerStagingElements);
  const int64_t staged = (layout.options.shared_weights ? 2 : 1) * staging_elements;
  // High priority: pushes wait for the copies, a step for everything else.
  SHOAL_ASSIGN_OR_RETURN(stream, context.NewStream(/*copies=*/true));
  SHOAL_ASSIGN_OR_RETURN(elements,
                         GpuBuffer::Allocate(context, GpuBuffer::Kind::kDevice, kFloat * largest));
  SHOAL_ASSIGN_OR_RETURN(gradient,
                         GpuBuffer::Allocate(context, GpuBuffer::Kind::kDevice,
                                             layout.options.exact() ? kFloat * largest : 0));
  SHOAL_ASSIGN_OR_RETURN(
      staging, GpuBuffer::Allocate(context, GpuBuffer::Kind::kPinnedHost, kFloat * staged));
  return absl::OkStatus();
}

void StagingStream::Close(gpu::CudaContext& context) {
  if (stream != nullptr) {
    const absl::Status left = context.Synchronize(stream, "what a stream that closes has to do");
    if (absl::IsDeadlineExceeded(left)) {
      LogWarning("{}", Message(left));
    }
    context.DestroyStream(stream);
  }
}

}  // namespace shoal::server::cuda
