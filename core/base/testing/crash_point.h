// Ends this process, as SIGKILL would, where the environment says: SHOAL_CRASH_AT=NAME:N, the Nth
// time that the point NAME is reached; with NAME:N:STOP it stands still there, until SIGCONT. For
// programs of tests, which JobEnvironment::reached and ParameterServiceOptions::reached tell of
// points.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace shoal {

inline std::function<void(std::string_view)> CrashPointOfEnvironment() {
  const char* at = std::getenv("SHOAL_CRASH_AT");
  const std::string text = at == nullptr ? "" : at;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    return [](std::string_view) {};
  }
  const auto left = std::make_shared<std::atomic<int>>(std::atoi(text.c_str() + colon + 1));
  return [name = text.substr(0, colon), left,
          signal = text.ends_with(":STOP") ? SIGSTOP : SIGKILL](std::string_view point) {
    if (name == point && --*left == 0) {
      raise(signal);
    }
  };
}

}  // namespace shoal
