// The hash that makes a push header recognisable as whole: set last by the client, checked first by
// the server.
#pragma once

#include "core/transport/data_layout.h"
#include "xxhash.h"

namespace shoal::transport {

inline uint64_t PushHeaderHash(const PushHeader& header) {
  return XXH3_64bits(&header, kPushHeaderHashedBytes);
}

// Call when all other fields are set.
inline void SealPushHeader(PushHeader& header) { header.header_hash = PushHeaderHash(header); }

inline bool IsWhole(const PushHeader& header) {
  return header.magic == kPushMagic && header.header_hash == PushHeaderHash(header);
}

}  // namespace shoal::transport
