// What an optimizer keeps for each element of a partition besides its fp32 master weight: moments.
// What servers take of memory, write to checkpoints and send to each other follows from this alone.
// server/store/optimizer.h has the arithmetic.
#pragma once

#include <cstdint>

namespace shoal::plan {

// train.optimizer
enum class Optimizer { kAdamW, kAdamW8, kLion };

// Elements of a moment that are kept in 8 bits with one scale: as many as tensors are aligned to,
// so that no block is of two tensors.
inline constexpr int64_t kPackedBlock = 16;
inline constexpr int64_t kPackedBlockBytes = 4 + kPackedBlock;

struct Moments {
  int arrays = 2;       // in fp32 wherever they leave a server's memory
  bool packed = false;  // there: in blocks of 8-bit values (server/store/packed_moments.h)

  // Of one array in memory; `count` is a multiple of kTensorAlignment.
  int64_t ArrayBytes(int64_t count) const {
    return packed ? count / kPackedBlock * kPackedBlockBytes : 4 * count;
  }

  bool operator==(const Moments&) const = default;
};

inline Moments MomentsOf(Optimizer optimizer) {
  return {.arrays = optimizer == Optimizer::kLion ? 1 : 2,
          .packed = optimizer == Optimizer::kAdamW8};
}

}  // namespace shoal::plan
