// The hash that tells whether a push header is whole: the client sets it last, the server checks it
// first. And that of the payload, which a client may add.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

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

template <typename Words>
bool AreZero(const Words& words) {
  return std::ranges::all_of(words, [](auto word) { return word == 0; });
}

// Whether it says nothing that this version of the layout does not have.
inline bool IsKnown(const PushHeader& header) {
  return header.flags == 0 && AreZero(header.reserved);
}

inline uint64_t PayloadHash(std::span<const std::byte> payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

// Whether the payload is what was sent, as far as its header tells.
inline bool Matches(const PushHeader& header, std::span<const std::byte> payload) {
  return header.payload_hash == 0 || header.payload_hash == PayloadHash(payload);
}

}  // namespace shoal::transport
