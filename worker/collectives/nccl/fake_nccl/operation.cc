#include "worker/collectives/nccl/fake_nccl/operation.h"

#include <algorithm>
#include <cstring>

#include "core/base/bf16.h"
#include "core/base/check.h"

namespace shoal::worker::fake_nccl {
namespace {

size_t BytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return 4;
    case ncclBfloat16:
      return 2;
    case ncclUint8:
      return 1;
    default:
      SHOAL_CHECK(false);
      return 0;
  }
}

// Computes the rank's part of the sum, added in the order of ranks, in fp32.
template <typename Element>
std::vector<Element> SumFor(const std::vector<Part>& parts, size_t rank, size_t count) {
  std::vector<Element> sum(count);
  for (size_t i = 0; i < count; ++i) {
    float total = 0;
    for (const Part& part : parts) {
      total += static_cast<float>(static_cast<const Element*>(part.from)[rank * count + i]);
    }
    sum[i] = static_cast<Element>(total);
  }
  return sum;
}

template <typename Element>
void ReduceScatter(const std::vector<Part>& parts, size_t count) {
  std::vector<std::vector<Element>> sums;  // computed first: a rank's result may lie in its input
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    sums.push_back(SumFor<Element>(parts, rank, count));
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::memcpy(parts[rank].to, sums[rank].data(), count * sizeof(Element));
  }
}

void AllGather(const std::vector<Part>& parts, size_t bytes) {
  std::vector<std::byte> all(parts.size() * bytes);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::memcpy(all.data() + rank * bytes, parts[rank].from, bytes);
  }
  for (const Part& part : parts) {
    std::memcpy(part.to, all.data(), all.size());
  }
}

}  // namespace

bool Operation::complete() const { return matches && std::ranges::all_of(parts, &Part::started); }

void Operation::Run() const {
  switch (kind) {
    case Kind::kAllGather:
      AllGather(parts, count * BytesOf(type));
      return;
    case Kind::kReduceScatter:
      if (type == ncclBfloat16) {
        ReduceScatter<BFloat16>(parts, count);
      } else {
        ReduceScatter<float>(parts, count);
      }
      return;
    case Kind::kMessage:
      std::memcpy(parts[1].to, parts[0].from, count * BytesOf(type));
      return;
  }
}

}  // namespace shoal::worker::fake_nccl
