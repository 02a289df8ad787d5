// How many rows the head computes its loss for at a time, so that logits are never all in memory.
// Each chunk reads the head's matrix and, in training, reads and writes its gradient. A CPU keeps
// up with that; a GPU would do nothing else, and takes larger chunks. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/bytes.h"
#include "core/job/device_kind.h"

namespace shoal::plan {

struct LossChunk {
  static constexpr int64_t kRowUnit = 64;

  // Distance from one row of logits to the next. Rows of an odd vocabulary would start where a
  // GPU's tensor cores cannot read them at once, and their products would take several times as
  // long.
  static constexpr int64_t Stride(int64_t vocabulary) { return RoundUp(vocabulary, 64); }

  int64_t most_rows = 0;
  int64_t most_logits_bytes = 0;  // fp32; at least kRowUnit rows, whatever they need

  // Returns a multiple of kRowUnit, at most what this many targets need.
  int64_t Rows(int64_t vocabulary, int64_t targets) const {
    const int64_t fitting = most_logits_bytes / (Stride(vocabulary) * 4) / kRowUnit * kRowUnit;
    return std::clamp(fitting, kRowUnit,
                      std::min(most_rows, RoundUp(std::max<int64_t>(targets, 1), kRowUnit)));
  }
};

inline constexpr LossChunk kCpuLossChunk = {.most_rows = 512,
                                            .most_logits_bytes = int64_t{32} << 20};
// Adding to the gradient takes a tenth of the time of 2048 rows' products, whatever the model, and
// a twentieth of 4096 rows'. The limit allows 4096 rows up to a vocabulary of 75,000, where the
// head is much of the work, and just allows 2048 rows of 152,064 logits.
inline constexpr LossChunk kGpuLossChunk = {.most_rows = 4096,
                                            .most_logits_bytes = int64_t{1200} << 20};

// `device` is that of a resolved job.
constexpr const LossChunk& LossChunkOf(DeviceKind device) {
  return device == DeviceKind::kCuda ? kGpuLossChunk : kCpuLossChunk;
}

}  // namespace shoal::plan
