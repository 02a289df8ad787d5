#include "core/base/net/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace shoal {
namespace {

// Enough for the connections of the most members that a job may have.
constexpr rlim_t kWanted = 16384;

// Of the limit, or of what is wanted at most, files have a quarter.
rlim_t ForConnections(rlim_t limit) { return std::min(limit, kWanted) / 4 * 3; }

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kWanted) {
    limit.rlim_cur = std::min(limit.rlim_max, kWanted);
    setrlimit(RLIMIT_NOFILE, &limit);  // the old one does, for fewer connections
  }
}

int FirstDescriptorForFiles() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(ForConnections(limit.rlim_cur));
}

}  // namespace shoal
