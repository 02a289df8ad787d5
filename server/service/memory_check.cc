#include "server/service/memory_check.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include "common/bytes.h"
#include "common/file.h"
#include "common/status.h"

namespace shoal::server {
namespace {

std::optional<int64_t> ParseNumber(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) {
    return std::nullopt;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> NumberInFile(const std::string& path) {
  const auto text = ReadFile(path, kMiB);
  return text.ok() ? ParseNumber(*text) : std::nullopt;
}

}  // namespace

absl::StatusOr<int64_t> ParseMemAvailable(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemAvailable:";
  const size_t line = meminfo.find(kKey);
  const std::optional<int64_t> kilobytes = line == std::string_view::npos
                                               ? std::nullopt
                                               : ParseNumber(meminfo.substr(line + kKey.size()));
  if (!kilobytes.has_value()) {
    return NotFound("/proc/meminfo has no MemAvailable");
  }
  return *kilobytes * kKiB;
}

absl::StatusOr<int64_t> AvailableMemory() {
  SHOAL_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile("/proc/meminfo", kMiB));
  SHOAL_ASSIGN_OR_RETURN(int64_t available, ParseMemAvailable(meminfo));
  // The group's own limit (version 2, then version 1 of the interface); "max" or no such file:
  // none.
  for (const auto& [limit_file, usage_file] :
       {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        std::pair{"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                  "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const std::optional<int64_t> limit = NumberInFile(limit_file);
    const std::optional<int64_t> usage = NumberInFile(usage_file);
    if (limit.has_value() && usage.has_value()) {
      available = std::min(available, std::max<int64_t>(0, *limit - *usage));
    }
  }
  return available;
}

}  // namespace shoal::server
