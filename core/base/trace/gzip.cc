#include "core/base/trace/gzip.h"

#include <zlib.h>

#include <array>

#include "core/base/check.h"

namespace shoal {

struct Gzip::Stream {
  z_stream z = {};
};

Gzip::Gzip() : stream_(std::make_unique<Stream>()) {
  constexpr int kGzipWindow = 15 + 16;  // 16: with gzip's header
  constexpr int kMemory = 8;            // zlib's own
  SHOAL_CHECK(deflateInit2(&stream_->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, kMemory,
                           Z_DEFAULT_STRATEGY) == Z_OK);
}

Gzip::~Gzip() { deflateEnd(&stream_->z); }

std::string Gzip::Pack(std::string_view text) { return Deflate(text, /*last=*/false); }

std::string Gzip::Finish() { return Deflate({}, /*last=*/true); }

std::string Gzip::Deflate(std::string_view text, bool last) {
  std::string packed;
  std::array<char, 1 << 14> room;
  z_stream& z = stream_->z;
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  do {
    z.next_out = reinterpret_cast<Bytef*>(room.data());
    z.avail_out = static_cast<uInt>(room.size());
    SHOAL_CHECK(deflate(&z, last ? Z_FINISH : Z_NO_FLUSH) != Z_STREAM_ERROR);
    packed.append(room.data(), room.size() - z.avail_out);
  } while (z.avail_out == 0);
  return packed;
}

}  // namespace shoal
