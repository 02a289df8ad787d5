// Feeds hostile bytes as records, which are refused or understood, never worse; and what was sealed
// comes out as it was.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/transport/tcp/record.h"

namespace shoal::transport {
namespace {

void Feed(RecordOpener& opener, std::span<const std::byte> bytes, std::string* frames) {
  while (!bytes.empty()) {
    const std::span<std::byte> room = opener.Room();
    const size_t here = std::min(bytes.size(), room.size());
    std::memcpy(room.data(), bytes.data(), here);
    opener.Received(here);
    bytes = bytes.subspan(here);
    for (auto next = opener.Next(); !next.ok() || !next->empty(); next = opener.Next()) {
      if (!next.ok()) {
        return;
      }
      frames->append(reinterpret_cast<const char*>(next->data()), next->size());
    }
  }
}

}  // namespace
}  // namespace shoal::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shoal::transport;
  const std::string secret(kRecordSecretBytes, 's');
  std::string frames;
  {
    RecordOpener opener(secret);
    Feed(opener, std::as_bytes(std::span(data, size)), &frames);
    if (!frames.empty()) {
      __builtin_trap();  // nobody sealed them
    }
  }
  if (size == 0 || size > kMaxRecordBytes) {
    return 0;
  }
  RecordSealer sealer(secret, /*records_of_key=*/2);
  RecordOpener opener(secret);
  for (int i = 0; i < 5; ++i) {
    std::vector<std::byte> record(size + kRecordOverhead);
    const iovec part = {const_cast<uint8_t*>(data), size};
    sealer.Seal({&part, 1}, record.data());
    frames.clear();
    Feed(opener, record, &frames);
    if (frames != std::string(reinterpret_cast<const char*>(data), size)) {
      __builtin_trap();
    }
  }
  return 0;
}
