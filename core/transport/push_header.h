// The hash that tells whether a push header is whole: the client sets it last, the server checks it
// first.
#pragma once

#include "core/transport/data_layout.h"
#include "xxhash.h"

namespace shoal::transport {

inline uint64_t PushHeaderHash(const PushHeader& header) {
  return XXH3_64bits(&header, kPushHeaderHashedBytes);
}

// Call after setting all other fields.
inline void SealPushHeader(PushHeader& header) { header.header_hash = PushHeaderHash(header); }

inline bool IsWhole(const PushHeader& header) {
  return header.magic == kPushMagic && header.header_hash == PushHeaderHash(header);
}

}  // namespace shoal::transport
