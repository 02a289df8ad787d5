// Errors: every fallible boundary returns absl::Status or absl::StatusOr, and its message is one
// line that names the file, line, key or peer and what to do about it. Exceptions never cross a
// library.
//
//   SHOAL_RETURN_IF_ERROR(Write(path));
//   SHOAL_ASSIGN_OR_RETURN(auto model, LoadModel(path));
//   return InvalidArgument("{}:{}: unknown key '{}'", path, line, key);
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"

namespace shoal {

// Returns the message of a status as a std::string_view (Debian's absl::string_view is another
// type).
inline std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// Returns "CODE: message", for logs.
std::string Describe(const absl::Status& status);

// Puts `context: ` before the message and keeps the code; OK stays OK.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Returns errno as a status with the nearest code, e.g. ENOENT -> NotFound. The message is "<what>:
// <strerror>".
absl::Status ErrnoToStatus(int error_number, std::string_view what);

#define SHOAL_DEFINE_STATUS_MAKER(Name)                                         \
  template <typename... Args>                                                   \
  absl::Status Name(fmt::format_string<Args...> format, Args&&... args) {       \
    return absl::Name##Error(fmt::format(format, std::forward<Args>(args)...)); \
  }
SHOAL_DEFINE_STATUS_MAKER(Aborted)
SHOAL_DEFINE_STATUS_MAKER(AlreadyExists)
SHOAL_DEFINE_STATUS_MAKER(Cancelled)
SHOAL_DEFINE_STATUS_MAKER(DataLoss)
SHOAL_DEFINE_STATUS_MAKER(DeadlineExceeded)
SHOAL_DEFINE_STATUS_MAKER(FailedPrecondition)
SHOAL_DEFINE_STATUS_MAKER(Internal)
SHOAL_DEFINE_STATUS_MAKER(InvalidArgument)
SHOAL_DEFINE_STATUS_MAKER(NotFound)
SHOAL_DEFINE_STATUS_MAKER(OutOfRange)
SHOAL_DEFINE_STATUS_MAKER(PermissionDenied)
SHOAL_DEFINE_STATUS_MAKER(ResourceExhausted)
SHOAL_DEFINE_STATUS_MAKER(Unauthenticated)
SHOAL_DEFINE_STATUS_MAKER(Unavailable)
SHOAL_DEFINE_STATUS_MAKER(Unimplemented)
#undef SHOAL_DEFINE_STATUS_MAKER

}  // namespace shoal

#define SHOAL_RETURN_IF_ERROR(expression)                                            \
  do {                                                                               \
    if (::absl::Status shoal_status = (expression); !shoal_status.ok()) [[unlikely]] \
      return shoal_status;                                                           \
  } while (false)

#define SHOAL_CONCAT_INNER(a, b) a##b
#define SHOAL_CONCAT(a, b) SHOAL_CONCAT_INNER(a, b)
#define SHOAL_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) [[unlikely]]                                      \
    return std::move(result).status();                                \
  declaration = *std::move(result)
#define SHOAL_ASSIGN_OR_RETURN(declaration, ...) \
  SHOAL_ASSIGN_OR_RETURN_INNER(SHOAL_CONCAT(shoal_result_, __LINE__), declaration, (__VA_ARGS__))
