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

// Parses "4MiB", "1.5GiB" (1024-based) and "4MB" (1000-based) into bytes; a bare number is bytes.
// Fails on negative or malformed text.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Formats 4194304 as "4.0 MiB".
std::string FormatBytes(int64_t bytes);

// Rounds `value` up to the next multiple.
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace shoal
