// SHOAL_CHECK: a broken invariant is a programmer's error and ends the process, also in release
// builds. Anything that input, a peer or the machine can cause is an absl::Status instead
// (core/base/status.h).
#pragma once

namespace shoal::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}

#define SHOAL_CHECK(condition)                                        \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::shoal::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
