#include "server/store/triad.h"

namespace shoal::server {
namespace {

SHOAL_KERNEL_BODY void Triad(const float* __restrict b, const float* __restrict c, float scale,
                             float* __restrict a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    a[i] = b[i] + scale * c[i];
  }
}

void TriadBaseline(const float* b, const float* c, float scale, float* a, int64_t count) {
  Triad(b, c, scale, a, count);
}
#if SHOAL_HAS_WIDE_KERNELS
SHOAL_WIDE_KERNEL void TriadWide(const float* b, const float* c, float scale, float* a,
                                 int64_t count) {
  Triad(b, c, scale, a, count);
}
#endif

}  // namespace

TriadKernel GetTriadKernel(KernelWidth width) {
#if SHOAL_HAS_WIDE_KERNELS
  if (width == KernelWidth::kWide) {
    return TriadWide;
  }
#endif
  return TriadBaseline;
}

}  // namespace shoal::server
