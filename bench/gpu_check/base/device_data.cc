#include "bench/gpu_check/base/device_data.h"

#include <algorithm>

#include "core/base/bf16.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

constexpr int64_t kDifferent = 250007;

template <typename T>
std::vector<T> NormalValues(int64_t count, double deviation, uint64_t seed) {
  Random random(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) {
    value = T(static_cast<float>(deviation * random.Normal()));
  }
  return values;
}

}  // namespace

absl::Status CopyNow(worker::Stream& stream, void* to, const void* from, int64_t bytes) {
  stream.Copy(to, from, bytes);
  return stream.Synchronize();
}

absl::Status FillNormal(worker::Stream& stream, void* to, DType dtype, int64_t count,
                        double deviation, uint64_t seed) {
  const int64_t different = std::min(count, kDifferent);
  const int64_t size = SizeOf(dtype);
  if (dtype == DType::kF32) {
    SHOAL_RETURN_IF_ERROR(CopyNow(
        stream, to, NormalValues<float>(different, deviation, seed).data(), different * size));
  } else {
    SHOAL_RETURN_IF_ERROR(CopyNow(
        stream, to, NormalValues<BFloat16>(different, deviation, seed).data(), different * size));
  }
  auto* const bytes = static_cast<std::byte*>(to);
  for (int64_t filled = different; filled < count;) {
    const int64_t more = std::min(filled, count - filled);
    stream.Copy(bytes + filled * size, bytes, more * size);
    filled += more;
  }
  return stream.Synchronize();
}

absl::StatusOr<std::byte*> DeviceData::Take(int64_t bytes) {
  SHOAL_ASSIGN_OR_RETURN(worker::Buffer buffer, device_.Allocate(bytes));
  return buffers_.emplace_back(std::move(buffer)).data();
}

absl::StatusOr<worker::Matrix> DeviceData::Normal(DType dtype, int64_t rows, int64_t columns,
                                                  double deviation) {
  SHOAL_ASSIGN_OR_RETURN(std::byte* const data, Take(rows * columns * SizeOf(dtype)));
  SHOAL_RETURN_IF_ERROR(FillNormal(stream_, data, dtype, rows * columns, deviation, ++seed_));
  return worker::Matrix::Dense(data, dtype, rows, columns);
}

absl::StatusOr<const int32_t*> DeviceData::Integers(std::span<const int32_t> values) {
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  SHOAL_ASSIGN_OR_RETURN(std::byte* const data, Take(bytes));
  SHOAL_RETURN_IF_ERROR(CopyNow(stream_, data, values.data(), bytes));
  return reinterpret_cast<const int32_t*>(data);
}

absl::StatusOr<void*> DeviceData::Zeros(int64_t bytes) {
  SHOAL_ASSIGN_OR_RETURN(std::byte* const data, Take(bytes));
  stream_.Zero(data, bytes);
  SHOAL_RETURN_IF_ERROR(stream_.Synchronize());
  return static_cast<void*>(data);
}

}  // namespace shoal::bench
