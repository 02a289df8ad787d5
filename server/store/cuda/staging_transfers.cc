#include "server/store/cuda/staging_transfers.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "core/base/bf16.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"

namespace shoal::server::cuda {
namespace {

constexpr int64_t kPiece = plan::kServerStagingElements;

// Puts the copy of elements [begin, begin + piece.size()) to the GPU on the stream, in the wire
// type, which is float on the host.
absl::Status PutPublished(const gpu::CudaContext& context, const StagingStream& staged,
                          std::span<const float> piece, int64_t begin, DType wire_type,
                          const WeightsBuffers& weights) {
  const int64_t element = SizeOf(wire_type);
  std::byte* const wire =
      weights.host != nullptr ? weights.host + begin * element : staged.converted();
  if (wire_type == DType::kBF16) {
    Convert(piece, reinterpret_cast<BFloat16*>(wire));
  } else {
    std::memcpy(wire, piece.data(), piece.size_bytes());
  }
  if (weights.shared == nullptr) {
    return absl::OkStatus();
  }
  return context.Check(cudaMemcpyAsync(weights.shared + begin * element, wire,
                                       piece.size() * static_cast<size_t>(element),
                                       cudaMemcpyHostToDevice, staged.stream),
                       "publishing a partition");
}

absl::Status LoadArray(gpu::CudaContext& context, const StagingStream& staged,
                       const plan::PartitionSpec& spec, const plan::UnitReader& reader,
                       float* array, DType wire_type, const WeightsBuffers& weights) {
  constexpr const char* kWhat = "loading a partition";
  if (!reader) {
    return context.Check(
        cudaMemsetAsync(array, 0, static_cast<size_t>(spec.count) * sizeof(float), staged.stream),
        "filling moments");
  }
  auto* const staging = staged.staging.as<float>();
  for (int64_t begin = 0; begin < spec.count; begin += kPiece) {
    const std::span<float> piece(staging,
                                 static_cast<size_t>(std::min(kPiece, spec.count - begin)));
    SHOAL_RETURN_IF_ERROR(reader(spec.unit, spec.offset + begin, piece));
    if (weights.host != nullptr || weights.shared != nullptr) {
      SHOAL_RETURN_IF_ERROR(PutPublished(context, staged, piece, begin, wire_type, weights));
    }
    SHOAL_RETURN_IF_ERROR(context.Check(cudaMemcpyAsync(array + begin, staging, piece.size_bytes(),
                                                        cudaMemcpyHostToDevice, staged.stream),
                                        kWhat));
    SHOAL_RETURN_IF_ERROR(context.Synchronize(staged.stream, kWhat));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadPartition(gpu::CudaContext& context, const StagingStream& staged,
                           const plan::PartitionSpec& spec, const PartitionArrays& arrays,
                           const StoreSource& source, DType wire_type,
                           const WeightsBuffers& weights) {
  const auto load = [&](const plan::UnitReader& reader, StateArray array,
                        const WeightsBuffers& to) {
    return LoadArray(context, staged, spec, reader, arrays.state[static_cast<size_t>(array)],
                     wire_type, to);
  };
  SHOAL_RETURN_IF_ERROR(load(source.master, StateArray::kMaster, weights));
  SHOAL_RETURN_IF_ERROR(load(source.m, StateArray::kFirstMoment, {}));
  return load(source.v, StateArray::kSecondMoment, {});
}

absl::Status ReadArray(gpu::CudaContext& context, const StagingStream& staged, const float* array,
                       std::span<float> to) {
  constexpr const char* kWhat = "reading a partition";
  const auto count = static_cast<int64_t>(to.size());
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const std::span<float> piece = to.subspan(static_cast<size_t>(begin),
                                              static_cast<size_t>(std::min(kPiece, count - begin)));
    SHOAL_RETURN_IF_ERROR(
        context.Check(cudaMemcpyAsync(staged.staging.as<void>(), array + begin, piece.size_bytes(),
                                      cudaMemcpyDeviceToHost, staged.stream),
                      kWhat));
    SHOAL_RETURN_IF_ERROR(context.Synchronize(staged.stream, kWhat));
    std::memcpy(piece.data(), staged.staging.as<void>(), piece.size_bytes());
  }
  return absl::OkStatus();
}

}  // namespace shoal::server::cuda
