// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023), with its one moment in
// fp32:
//
//   g = gradient * clip
//   p = p * (1 - lr * weight_decay) - lr * sign(m + (g - m) * (1 - beta1))
//   m = m * beta2 + g * (1 - beta2)
#include "server/store/optimizer.h"

namespace shoal::server {
namespace {

struct Update {
  template <typename Wire>
  SHOAL_INLINE void Run(const UpdateScalars& scalars, const float* __restrict gradient,
                        float* __restrict master, void* first, void* /*second*/,
                        Wire* __restrict wire, int64_t count) {
    const UpdateScalars s = scalars;
    auto* __restrict m = static_cast<float*>(first);
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * s.clip;
      const float direction = m[i] + (g - m[i]) * s.one_minus_beta1;
      const float sign = (direction > 0 ? 1.0F : 0.0F) - (direction < 0 ? 1.0F : 0.0F);
      const float updated = master[i] * s.decay_factor - s.step_size * sign;
      m[i] = m[i] * s.beta2 + g * s.one_minus_beta2;
      master[i] = updated;
      wire[i] = Wire(updated);
    }
  }
};

constexpr OptimizerKernels kBaseline = {RunBaseline<Update>, RunBaseline<Update>};
constexpr OptimizerKernels kWide = {RunWide<Update>, RunWide<Update>};

}  // namespace

const OptimizerKernels& GetLionKernels(KernelWidth width) {
  return width == KernelWidth::kWide ? kWide : kBaseline;
}

}  // namespace shoal::server
