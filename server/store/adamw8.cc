// AdamW with both moments in 8 bits (server/store/packed_moments.h). A step computes in fp32 from
// what was kept, moves the weights by moments as computed and then rounds these.
#include <algorithm>

#include "server/store/adamw_element.h"
#include "server/store/optimizer.h"
#include "server/store/packed_moments.h"

namespace shoal::server {
namespace {

SHOAL_INLINE PackedBlock* BlockOf(void* packed, int64_t element) {
  return static_cast<PackedBlock*>(packed) + element / plan::kPackedBlock;
}

struct Update {
  template <typename Wire>
  SHOAL_INLINE void Run(const UpdateScalars& scalars, const float* __restrict gradient,
                        float* __restrict master, void* first, void* second, Wire* __restrict wire,
                        int64_t count) {
    const UpdateScalars s = scalars;
    alignas(64) float m[kPackedTile];
    alignas(64) float v[kPackedTile];
    for (int64_t begin = 0; begin < count; begin += kPackedTile) {
      const int64_t tile = std::min(kPackedTile, count - begin);
      PackedBlock* const first_blocks = BlockOf(first, begin);
      PackedBlock* const second_blocks = BlockOf(second, begin);
      UnpackTile<FirstMoment>(first_blocks, m, tile);
      UnpackTile<SecondMoment>(second_blocks, v, tile);
      for (int64_t i = 0; i < tile; ++i) {
        const float updated = AdamWElement(s, gradient[begin + i], master[begin + i], m[i], v[i]);
        master[begin + i] = updated;
        wire[begin + i] = Wire(updated);
      }
      PackTile<FirstMoment>(m, first_blocks, tile);
      PackTile<DrawnSecondMoment>(v, second_blocks, tile, s.draws);
    }
  }
};

template <typename Moment>
void PackAll(const float* values, void* packed, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kPackedTile) {
    PackTile<Moment>(values + begin, BlockOf(packed, begin), std::min(kPackedTile, count - begin));
  }
}

template <typename Moment>
void UnpackAll(const void* packed, float* values, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kPackedTile) {
    UnpackTile<Moment>(static_cast<const PackedBlock*>(packed) + begin / plan::kPackedBlock,
                       values + begin, std::min(kPackedTile, count - begin));
  }
}

constexpr OptimizerKernels kBaseline = {RunBaseline<Update>, RunBaseline<Update>};
constexpr OptimizerKernels kWide = {RunWide<Update>, RunWide<Update>};

}  // namespace

void PackMoments(const float* values, void* packed, int64_t count, bool second) {
  second ? PackAll<SecondMoment>(values, packed, count)
         : PackAll<FirstMoment>(values, packed, count);
}

void UnpackMoments(const void* packed, float* values, int64_t count, bool second) {
  second ? UnpackAll<SecondMoment>(packed, values, count)
         : UnpackAll<FirstMoment>(packed, values, count);
}

const OptimizerKernels& GetAdamW8Kernels(KernelWidth width) {
  return width == KernelWidth::kWide ? kWide : kBaseline;
}

}  // namespace shoal::server
