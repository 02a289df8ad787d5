#include "core/base/status.h"

#include <cstring>

namespace shoal {

std::string Describe(const absl::Status& status) {
  if (status.ok()) {
    return "OK";
  }
  return fmt::format("{}: {}", absl::StatusCodeToString(status.code()), Message(status));
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) {
    return status;
  }
  return absl::Status(status.code(), fmt::format("{}: {}", context, Message(status)));
}

absl::Status ErrnoToStatus(int error_number, std::string_view what) {
  return absl::Status(absl::ErrnoToStatusCode(error_number),
                      fmt::format("{}: {}", what, std::strerror(error_number)));
}

}  // namespace shoal
