// AdamW with both moments in fp32.
#include "server/store/adamw_element.h"
#include "server/store/optimizer.h"

namespace shoal::server {
namespace {

struct Update {
  template <typename Wire>
  SHOAL_INLINE void Run(const UpdateScalars& scalars, const float* __restrict gradient,
                        float* __restrict master, void* first, void* second, Wire* __restrict wire,
                        int64_t count) {
    const UpdateScalars s = scalars;
    auto* __restrict m = static_cast<float*>(first);
    auto* __restrict v = static_cast<float*>(second);
    for (int64_t i = 0; i < count; ++i) {
      float new_m = m[i];
      float new_v = v[i];
      const float updated = AdamWElement(s, gradient[i], master[i], new_m, new_v);
      m[i] = new_m;
      v[i] = new_v;
      master[i] = updated;
      wire[i] = Wire(updated);
    }
  }
};

constexpr OptimizerKernels kBaseline = {RunBaseline<Update>, RunBaseline<Update>};
constexpr OptimizerKernels kWide = {RunWide<Update>, RunWide<Update>};

}  // namespace

const OptimizerKernels& GetAdamWKernels(KernelWidth width) {
  return width == KernelWidth::kWide ? kWide : kBaseline;
}

}  // namespace shoal::server
