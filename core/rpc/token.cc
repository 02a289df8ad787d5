#include "core/rpc/token.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal::rpc {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // half of what gRPC allows for all metadata of a call

std::string Trim(const std::string& text) {
  constexpr const char* kWhiteSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string::npos) {
    return "";
  }
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

}  // namespace

absl::StatusOr<Token> Token::Create(std::string value) {
  if (value.empty()) {
    return InvalidArgument("the token is empty");
  }
  if (value.size() > kMaxTokenBytes) {
    return InvalidArgument("the token has {} bytes, at most {} are allowed", value.size(),
                           kMaxTokenBytes);
  }
  const bool printable =
      std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!printable) {
    return InvalidArgument("the token must consist of printable ASCII characters without spaces");
  }
  return Token(std::move(value));
}

Token Token::Generate() { return Token(SecureToken()); }

bool Token::Matches(std::string_view presented) const {
  // The time depends only on `presented`, never on where it differs; an empty token matches
  // nothing.
  unsigned difference = value_.empty() || presented.size() != value_.size() ? 1U : 0U;
  for (size_t i = 0; i < presented.size(); ++i) {
    const char expected = value_.empty() ? '\0' : value_[i % value_.size()];
    difference |= static_cast<unsigned char>(presented[i]) ^ static_cast<unsigned char>(expected);
  }
  return difference == 0;
}

absl::StatusOr<Token> LoadToken(const std::string& path) {
  if (!path.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path, 2 * kMaxTokenBytes));
    auto token = Token::Create(Trim(contents));
    return token.ok() ? token : Annotate(token.status(), path);
  }
  const char* variable = std::getenv(kTokenVariable);
  if (variable == nullptr) {
    return FailedPrecondition("no token: name a file with --token-file or set {}", kTokenVariable);
  }
  auto token = Token::Create(Trim(variable));
  return token.ok() ? token : Annotate(token.status(), kTokenVariable);
}

}  // namespace shoal::rpc
