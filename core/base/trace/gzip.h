// Packs text as gzip (RFC 1952), piece by piece.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace shoal {

class Gzip {
 public:
  Gzip();
  ~Gzip();
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  // Returns what is packed by now, which may be nothing. After Finish there are no calls.
  std::string Pack(std::string_view text);
  std::string Finish();

 private:
  struct Stream;
  std::string Deflate(std::string_view text, bool last);

  const std::unique_ptr<Stream> stream_;
};

}  // namespace shoal
