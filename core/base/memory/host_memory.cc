#include "core/base/memory/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal {
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

absl::StatusOr<int64_t> Field(std::string_view meminfo, std::string_view key) {
  const size_t line = meminfo.find(key);
  const std::optional<int64_t> kibibytes = line == std::string_view::npos
                                               ? std::nullopt
                                               : ParseNumber(meminfo.substr(line + key.size()));
  if (!kibibytes.has_value()) {
    return NotFound("/proc/meminfo has no {}", key.substr(0, key.size() - 1));
  }
  return *kibibytes * kKiB;
}

}  // namespace

absl::StatusOr<HostMemory> ReadHostMemory(const std::string& root) {
  SHOAL_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile(root + "/proc/meminfo", kMiB));
  HostMemory memory;
  SHOAL_ASSIGN_OR_RETURN(memory.total, Field(meminfo, "MemTotal:"));
  SHOAL_ASSIGN_OR_RETURN(memory.available, Field(meminfo, "MemAvailable:"));
  if (const char* const said = std::getenv(kHostMemoryVariable); said != nullptr) {
    const absl::StatusOr<int64_t> total = ParseBytes(said);
    if (!total.ok() || *total == 0) {
      return InvalidArgument("{}='{}' is no size of a machine's memory; write one like 128GiB",
                             kHostMemoryVariable, said);
    }
    const int64_t used = memory.total - memory.available;
    memory.total = *total;
    memory.available = std::max<int64_t>(0, *total - used);
  }
  // The group's own limit (version 2, then version 1 of the interface); "max" or no such file:
  // none.
  for (const auto& [limit_file, usage_file] :
       {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        std::pair{"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                  "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const std::optional<int64_t> limit = NumberInFile(root + limit_file);
    const std::optional<int64_t> usage = NumberInFile(root + usage_file);
    if (limit.has_value() && usage.has_value()) {
      memory.total = std::min(memory.total, *limit);
      memory.available = std::min(memory.available, std::max<int64_t>(0, *limit - *usage));
    }
  }
  return memory;
}

absl::StatusOr<int64_t> AvailableMemory() {
  SHOAL_ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
  return memory.available;
}

}  // namespace shoal
