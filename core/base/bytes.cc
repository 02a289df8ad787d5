#include "core/base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>

#include "core/base/status.h"

namespace shoal {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"", 1},
                                         {"B", 1},
                                         {"KiB", 1024.0},
                                         {"MiB", 1048576.0},
                                         {"GiB", 1073741824.0},
                                         {"TiB", 1099511627776.0},
                                         {"KB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9}}};
constexpr double kMaxBytes = 9.0e18;  // below 2^63

}  // namespace

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && std::isfinite(value) && value >= 0) {
    std::string_view suffix = text.substr(end - text.data());
    while (!suffix.empty() && suffix.front() == ' ') {
      suffix.remove_prefix(1);
    }
    for (const Unit& unit : kUnits) {
      if (suffix == unit.name && value * unit.bytes < kMaxBytes) {
        return std::llround(value * unit.bytes);
      }
    }
  }
  return InvalidArgument("'{}' is not a byte count; write it like 4MiB, 64KiB or 512", text);
}

std::string FormatBytes(int64_t bytes) {
  static constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t index = 0;
  while (std::abs(value) >= 1024.0 && index + 1 < kNames.size()) {
    value /= 1024.0;
    ++index;
  }
  return index == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kNames[index]);
}

}  // namespace shoal
