// Ends this process, as SIGKILL would, where the environment says: SHOAL_CRASH_AT=NAME:N, the Nth
// time that the point NAME is reached (JobEnvironment::reached); with NAME:N:STOP it stands still
// there, until SIGCONT. For a coordinator of tests.
#pragma once

#include <signal.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace shoal::server::testing {

inline std::function<void(const char*)> CrashPointOfEnvironment() {
  const char* at = std::getenv("SHOAL_CRASH_AT");
  const std::string text = at == nullptr ? "" : at;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    return [](const char*) {};
  }
  // One thread at a time: the coordinator's lock is held.
  return [name = text.substr(0, colon), left = std::atoi(text.c_str() + colon + 1),
          signal = text.ends_with(":STOP") ? SIGSTOP : SIGKILL](const char* point) mutable {
    if (name == point && --left == 0) {
      raise(signal);
    }
  };
}

}  // namespace shoal::server::testing
