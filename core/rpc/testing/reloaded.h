// Helpers for tests of files that are read again while a process runs.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "absl/time/clock.h"

namespace shoal::rpc {

// Makes `link` stand for that folder from now on, at once, as Kubernetes does.
inline void PointTo(const std::string& link, const std::string& folder) {
  std::filesystem::create_symlink(folder, link + ".next");
  std::filesystem::rename(link + ".next", link);
}

// Waits, half a minute at most, for what other threads do.
inline bool Becomes(const std::function<bool()>& done) {
  for (int i = 0; i < 3000 && !done(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  return done();
}

}  // namespace shoal::rpc
