#include "bench/gpu_check/base/gpu_flat_kernels.h"

#include "core/base/status.h"
#include "core/gpu/kernel/element.h"
#include "server/store/cuda/accumulate.h"
#include "server/store/cuda/adamw.h"
#include "worker/backend/cuda/cuda_device.h"

namespace shoal::bench {
namespace {

namespace cuda = server::cuda;

gpu::Element ElementOf(DType type) {
  return type == DType::kBF16 ? gpu::Element::kBf16 : gpu::Element::kF32;
}

absl::Status StatusOf(cudaError_t error, std::string_view what) {
  return error == cudaSuccess ? absl::OkStatus()
                              : Internal("{}: {}", what, cudaGetErrorString(error));
}

class Gpu final : public FlatKernels {
 public:
  absl::Status AdamW(worker::Stream& stream, const server::UpdateScalars& scalars,
                     const AdamWArrays& a) const override {
    return StatusOf(cuda::AdamW(worker::NativeStream(stream), {.scalars = scalars,
                                                               .gradient = a.gradient,
                                                               .master = a.master,
                                                               .m = a.m,
                                                               .v = a.v,
                                                               .wire = a.weights,
                                                               .wire_element = ElementOf(a.type),
                                                               .count = a.count}),
                    "AdamW");
  }

  absl::Status Add(worker::Stream& stream, const void* gradient, DType type, float* accumulator,
                   int64_t count) const override {
    return StatusOf(cuda::AddGradient(worker::NativeStream(stream), gradient, ElementOf(type),
                                      accumulator, count),
                    "AddGradient");
  }

  int64_t RefusedCounts(int64_t count) const override { return cuda::ExactBlocks(count); }

  absl::Status AddExact(worker::Stream& stream, const void* gradient, DType type,
                        int64_t* accumulator, int64_t* refused, int64_t count) const override {
    return StatusOf(cuda::AddExactGradient(worker::NativeStream(stream), gradient, ElementOf(type),
                                           accumulator, refused, count),
                    "AddExactGradient");
  }

  absl::Status ExactToFloat(worker::Stream& stream, const int64_t* accumulator, float* value,
                            int64_t count) const override {
    return StatusOf(cuda::ExactToFloat(worker::NativeStream(stream), accumulator, value, count),
                    "ExactToFloat");
  }

  absl::Status Statistics(worker::Stream& stream, const float* gradient,
                          server::GradientStatistics* chunks, int64_t count) const override {
    static_assert(cuda::kStatisticsChunk == server::kReductionChunk);
    static_assert(sizeof(cuda::ChunkStatistics) == sizeof(server::GradientStatistics));
    return StatusOf(
        cuda::GradientStatistics(worker::NativeStream(stream), gradient,
                                 reinterpret_cast<cuda::ChunkStatistics*>(chunks), count),
        "GradientStatistics");
  }
};

}  // namespace

const FlatKernels& GpuFlatKernels() {
  static const Gpu kernels;
  return kernels;
}

}  // namespace shoal::bench
