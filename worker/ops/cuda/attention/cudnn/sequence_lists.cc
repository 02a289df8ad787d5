#include "worker/ops/cuda/attention/cudnn/sequence_lists.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker::cuda {
namespace {

// Entries of one list, so that the next one starts at a multiple of 16 bytes.
int64_t EntriesOf(int64_t sequences) { return RoundUp(sequences + 1, 4); }

SequenceLists ListsIn(std::byte* memory, int64_t sequences) {
  auto* const first = reinterpret_cast<int32_t*>(memory);
  SequenceLists lists{.counts = first};
  for (size_t i = 0; i < kOffsetLists; ++i) {
    lists.offsets[i] = first + static_cast<int64_t>(i + 1) * EntriesOf(sequences);
  }
  return lists;
}

void Fill(const SequenceLists& lists, int64_t sequences, const TokenWidths& widths,
          std::span<const int32_t> cu_seqlens) {
  const auto own = static_cast<int64_t>(cu_seqlens.size()) - 1;
  for (int64_t s = 0; s <= sequences; ++s) {
    const int32_t begin = cu_seqlens[static_cast<size_t>(std::min(s, own))];
    if (s < sequences) {
      lists.counts[s] = s < own ? cu_seqlens[static_cast<size_t>(s) + 1] - begin : 0;
    }
    for (size_t i = 0; i < kOffsetLists; ++i) {
      lists.offsets[i][s] = static_cast<int32_t>(begin * widths[i]);
    }
  }
}

}  // namespace

absl::StatusOr<SequenceLists> SequenceListCache::Get(int64_t sequences, const TokenWidths& widths,
                                                     std::span<const int32_t> cu_seqlens) {
  SHOAL_CHECK(cu_seqlens.size() > 1 && static_cast<int64_t>(cu_seqlens.size()) - 1 <= sequences);
  const KeptUploads<Entry>::Kept* lists = lists_.Find([&](const Entry& entry) {
    return entry.sequences == sequences && entry.widths == widths &&
           std::ranges::equal(entry.cu_seqlens, cu_seqlens);
  });
  if (lists == nullptr) {
    const auto bytes =
        static_cast<int64_t>((kOffsetLists + 1) * sizeof(int32_t)) * EntriesOf(sequences);
    SHOAL_ASSIGN_OR_RETURN(
        lists, lists_.Keep({.sequences = sequences,
                            .widths = widths,
                            .cu_seqlens = {cu_seqlens.begin(), cu_seqlens.end()}},
                           bytes, [&](std::byte* to) {
                             Fill(ListsIn(to, sequences), sequences, widths, cu_seqlens);
                           }));
  }
  return ListsIn(lists->table.data(), sequences);
}

}  // namespace shoal::worker::cuda
