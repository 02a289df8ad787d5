#include "bench/gpu_check/base/cpu_flat_kernels.h"

#include <algorithm>

namespace shoal::bench {
namespace {

class Cpu final : public FlatKernels {
 public:
  absl::Status AdamW(worker::Stream&, const server::UpdateScalars& scalars,
                     const AdamWArrays& a) const override {
    const server::OptimizerKernels& kernels = server::GetAdamWKernels();
    if (a.type == DType::kBF16) {
      kernels.bf16(scalars, a.gradient, a.master, a.m, a.v, static_cast<BFloat16*>(a.weights),
                   a.count);
    } else {
      kernels.f32(scalars, a.gradient, a.master, a.m, a.v, static_cast<float*>(a.weights), a.count);
    }
    return absl::OkStatus();
  }

  absl::Status Add(worker::Stream&, const void* gradient, DType type, float* accumulator,
                   int64_t count) const override {
    const server::AccumulateKernels& kernels = server::GetAccumulateKernels();
    if (type == DType::kBF16) {
      kernels.add_bf16(static_cast<const BFloat16*>(gradient), accumulator, count);
    } else {
      kernels.add_f32(static_cast<const float*>(gradient), accumulator, count);
    }
    return absl::OkStatus();
  }

  int64_t RefusedCounts(int64_t) const override { return 1; }

  absl::Status AddExact(worker::Stream&, const void* gradient, DType type, int64_t* accumulator,
                        int64_t* refused, int64_t count) const override {
    const server::AccumulateKernels& kernels = server::GetAccumulateKernels();
    *refused +=
        type == DType::kBF16
            ? kernels.add_exact_bf16(static_cast<const BFloat16*>(gradient), accumulator, count)
            : kernels.add_exact_f32(static_cast<const float*>(gradient), accumulator, count);
    return absl::OkStatus();
  }

  absl::Status ExactToFloat(worker::Stream&, const int64_t* accumulator, float* value,
                            int64_t count) const override {
    server::GetAccumulateKernels().exact_to_float(accumulator, value, count);
    return absl::OkStatus();
  }

  absl::Status Statistics(worker::Stream&, const float* gradient,
                          server::GradientStatistics* chunks, int64_t count) const override {
    for (int64_t begin = 0; begin < count; begin += server::kReductionChunk) {
      *chunks++ = server::GetAccumulateKernels().statistics(
          gradient + begin, std::min(server::kReductionChunk, count - begin));
    }
    return absl::OkStatus();
  }
};

}  // namespace

const FlatKernels& CpuFlatKernels() {
  static const Cpu kernels;
  return kernels;
}

}  // namespace shoal::bench
