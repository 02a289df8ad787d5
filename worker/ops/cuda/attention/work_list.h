// The tiles of a packed batch, and their copies in device memory.
//
// Sequences differ in length, and a tile's work in how many keys its rows see, so tiles are listed
// longest first: the GPU starts blocks in order, and the last ones are short. WorkLists keeps the
// last kMost lists (kept_uploads.h). Threads: one at a time. Failure: that of the device's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/ops/cuda/attention/kept_uploads.h"
#include "worker/ops/cuda/attention/tiles.h"

namespace shoal::worker::cuda {

// What a list is made from: tiles of `size` rows, `group` rows per token, or of `size` keys.
struct TileCut {
  enum class Of : uint8_t { kRows, kKeys };
  Of of = Of::kRows;
  int32_t size = 0;
  int32_t group = 1;

  bool operator==(const TileCut&) const = default;
};

std::vector<AttentionTile> ListTiles(const TileCut& cut, std::span<const int32_t> cu_seqlens);

class WorkLists {
 public:
  static constexpr size_t kMost = 64;

  struct List {
    const AttentionTile* tiles = nullptr;  // device memory; null if there are none
    int64_t count = 0;
  };

  // Both must outlive this; work that uses the lists is put on this stream.
  WorkLists(Device& device, Stream& stream) : lists_(device, stream, kMost) {}

  // Valid for work put on the stream before the next call.
  absl::StatusOr<List> Get(const TileCut& cut, std::span<const int32_t> cu_seqlens);

 private:
  struct Entry {
    TileCut cut;
    std::vector<int32_t> cu_seqlens;
    int64_t count = 0;
  };

  KeptUploads<Entry> lists_;
};

}  // namespace shoal::worker::cuda
