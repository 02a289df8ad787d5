#include "core/model/huggingface/stored_tensor.h"

#include <algorithm>
#include <bit>

#include "core/base/bf16.h"
#include "core/base/status.h"
#include "fmt/ranges.h"

namespace shoal::formats {
namespace {

constexpr size_t kConvertedElements = 32 << 10;  // small enough for a core's cache

}  // namespace

absl::Status StoredTensor::Read(int64_t begin, std::span<float> out) const {
  if (entry.dtype == DType::kF32) {
    return file->Read(entry, begin * 4, std::as_writable_bytes(out));
  }
  std::vector<uint16_t> piece(std::min(out.size(), kConvertedElements));
  while (!out.empty()) {
    const std::span<uint16_t> bits = std::span(piece).first(std::min(out.size(), piece.size()));
    SHOAL_RETURN_IF_ERROR(file->Read(entry, begin * 2, std::as_writable_bytes(bits)));
    for (size_t i = 0; i < bits.size(); ++i) {
      out[i] = entry.dtype == DType::kF16 ? HalfToFloat(bits[i])
                                          : static_cast<float>(std::bit_cast<BFloat16>(bits[i]));
    }
    out = out.subspan(bits.size());
    begin += std::ssize(bits);
  }
  return absl::OkStatus();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace shoal::formats
