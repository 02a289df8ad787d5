// Feeds hostile bytes as offers, answers and messages: each is refused or understood, never worse.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/transport/verbs/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shoal::transport;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)DecodeOffer("peer", bytes);
  (void)DecodeAnswer("peer", "nonce", bytes);
  if (const auto message = DecodeMessage("peer", bytes); message.ok()) {
    // What operations are addressed by.
    for (size_t i = 0; i < message->memory.regions.size(); ++i) {
      const RemoteMemory::Chunks& chunks = message->memory.chunks[i];
      const int64_t last = (message->memory.regions[i].bytes - 1) / chunks.bytes;
      if (last < 0 || static_cast<size_t>(last) >= chunks.chunks.size()) {
        __builtin_trap();
      }
    }
  }
  return 0;
}
