// The bearer token of every call between a job's processes. It comes from a file or the
// environment, travels as metadata "authorization: Bearer ...", is compared in constant time, and
// is never logged or put into a message.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace shoal::rpc {

class Token {
 public:
  Token() = default;
  // InvalidArgument if it is empty, too long, or has characters that metadata cannot carry.
  static absl::StatusOr<Token> Create(std::string value);
  // Makes a random one, for a launcher's processes.
  static Token Generate();

  bool empty() const { return value_.empty(); }
  // Takes the same time wherever the two differ.
  bool Matches(std::string_view presented) const;
  // For passing to a child process or into metadata; never for a log.
  const std::string& secret() const { return value_; }

 private:
  explicit Token(std::string value) : value_(std::move(value)) {}
  std::string value_;
};

inline constexpr const char* kTokenVariable = "SHOAL_TOKEN";

// Returns the token in `path`, trimmed of white space; without a path, the one in the environment
// variable SHOAL_TOKEN. FailedPrecondition if there is neither.
absl::StatusOr<Token> LoadToken(const std::string& path);

}  // namespace shoal::rpc
