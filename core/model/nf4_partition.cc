#include "core/model/nf4_partition.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/bf16.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/nf4.h"
#include "core/base/status.h"

namespace shoal::plan {
namespace {

float FloatAt(const std::byte* from) {
  float value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

int64_t Nf4Partition::Part::blocks() const {
  return (before + count + after + kNf4Block - 1) / kNf4Block;
}

Nf4Partition::Nf4Partition(const UnitSpec& unit, int64_t offset, int64_t count)
    : unit_(unit.index), offset_(offset), count_(count) {
  SHOAL_CHECK(offset % kTensorAlignment == 0);
  for (const TensorSpec& tensor : unit.tensors) {
    const int64_t begin = std::max(offset, tensor.offset) - tensor.offset;
    const int64_t end = std::min(offset + count, tensor.offset + tensor.count()) - tensor.offset;
    if (begin >= end) {
      continue;
    }
    Part part = {.matrix = tensor.rank() == 2,
                 .first = tensor.offset + begin - offset,
                 .count = end - begin,
                 .at = bytes_};
    int64_t bytes = part.count * 4;
    if (part.matrix) {
      part.before = begin % kNf4Block;
      part.after = std::min(RoundUp(end, kNf4Block), tensor.count()) - end;
      bytes = part.blocks() * 4 + Nf4CodeBytes(part.count);
    }
    bytes_ += RoundUp(bytes, kNf4PartAlignment);
    parts_.push_back(part);
  }
  SHOAL_CHECK(bytes_ > 0);
}

absl::Status Nf4Partition::Encode(const UnitReader& read, std::byte* to) const {
  std::memset(to, 0, static_cast<size_t>(bytes_));
  // All at once, as files are read record by record.
  const int64_t first = parts_.front().first - parts_.front().before;
  const Part& last = parts_.back();
  std::vector<float> weights(static_cast<size_t>(last.first + last.count + last.after - first));
  SHOAL_RETURN_IF_ERROR(read(unit_, offset_ + first, weights));
  for (const Part& part : parts_) {
    const auto of_part = std::span<const float>(weights).subspan(
        static_cast<size_t>(part.first - part.before - first),
        static_cast<size_t>(part.before + part.count + part.after));
    if (part.matrix) {
      EncodePart(part, of_part, to + part.at);
    } else {
      std::memcpy(to + part.at, of_part.data(), of_part.size_bytes());
    }
  }
  return absl::OkStatus();
}

// `weights`: of its blocks whole.
void Nf4Partition::EncodePart(const Part& part, std::span<const float> weights,
                              std::byte* to) const {
  auto* const all_codes = reinterpret_cast<uint8_t*>(to + part.blocks() * 4);
  const auto size = static_cast<int64_t>(weights.size());
  for (int64_t block = 0; block < part.blocks(); ++block) {
    const int64_t begin = block * kNf4Block;
    const int64_t count = std::min(kNf4Block, size - begin);
    std::array<uint8_t, kNf4Block / 2> codes = {};
    const float scale = EncodeNf4(
        weights.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), codes.data());
    std::memcpy(to + block * 4, &scale, sizeof(scale));
    const int64_t first = std::max(begin, part.before);
    const int64_t last = std::min(begin + count, part.before + part.count);
    std::memcpy(all_codes + (first - part.before) / 2, codes.data() + (first - begin) / 2,
                static_cast<size_t>(Nf4CodeBytes(last - first)));
  }
}

void Nf4Partition::Decode(const std::byte* from, DType dtype, std::byte* to) const {
  if (dtype == DType::kF32) {
    DecodeTo(from, reinterpret_cast<float*>(to));
  } else {
    DecodeTo(from, reinterpret_cast<BFloat16*>(to));
  }
}

template <typename T>
void Nf4Partition::DecodeTo(const std::byte* from, T* to) const {
  int64_t written = 0;
  for (const Part& part : parts_) {
    std::fill(to + written, to + part.first, T(0.0F));
    written = part.first + part.count;
    const std::byte* const here = from + part.at;
    if (!part.matrix) {
      for (int64_t i = 0; i < part.count; ++i) {
        to[part.first + i] = T(FloatAt(here + i * 4));
      }
      continue;
    }
    const auto* const codes = reinterpret_cast<const uint8_t*>(here + part.blocks() * 4);
    int64_t done = 0;
    for (int64_t block = 0; block < part.blocks(); ++block) {
      const int64_t left = kNf4Block - (block == 0 ? part.before : 0);
      const int64_t count = std::min(left, part.count - done);
      DecodeNf4(FloatAt(here + block * 4), codes + done / 2, count, to + part.first + done);
      done += count;
    }
  }
  std::fill(to + written, to + count_, T(0.0F));
}

}  // namespace shoal::plan
