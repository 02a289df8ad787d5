// Where a batch's sequences lie, for cuDNN's graphs: how many tokens each has, and where it starts
// in each kind of tensor, in device memory.
//
// Keeps the last kMost lists (../kept_uploads.h). Threads: one at a time. Failure: that of the
// device's memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/ops/cuda/attention/kept_uploads.h"

namespace shoal::worker::cuda {

inline constexpr size_t kOffsetLists = 6;
// Elements from a token to the next in each kind of tensor.
using TokenWidths = std::array<int64_t, kOffsetLists>;

// int32 for each of `sequences` sequences; those beyond the batch's own have no tokens and lie at
// its end. Offsets have one more entry, the end.
struct SequenceLists {
  int32_t* counts = nullptr;
  std::array<int32_t*, kOffsetLists> offsets = {};  // by TokenWidths
};

class SequenceListCache {
 public:
  static constexpr size_t kMost = 32;

  // Both must outlive this; work that uses the lists is put on this stream.
  SequenceListCache(Device& device, Stream& stream) : lists_(device, stream, kMost) {}

  // cu_seqlens: at least one sequence, at most `sequences`; its end times each width must fit
  // int32. Valid for work put on the stream before the next call.
  absl::StatusOr<SequenceLists> Get(int64_t sequences, const TokenWidths& widths,
                                    std::span<const int32_t> cu_seqlens);

 private:
  struct Entry {
    int64_t sequences = 0;
    TokenWidths widths = {};
    std::vector<int32_t> cu_seqlens;
  };

  KeptUploads<Entry> lists_;
};

}  // namespace shoal::worker::cuda
