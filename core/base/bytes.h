// Byte counts as people write them: "4MiB", "64KiB", "1GB", "512".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace shoal {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// "4MiB", "1.5GiB" (1024-based) and "4MB" (1000-based) to bytes; a bare number is bytes. Negative
// or malformed is an error.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// 4194304 -> "4.0 MiB".
std::string FormatBytes(int64_t bytes);

// value rounded up to the next multiple.
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace shoal
