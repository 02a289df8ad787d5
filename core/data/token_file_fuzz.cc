#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/data/token_file_layout.h"

// Corrects the checksum before parsing, so that the code after that check is reached.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shoal::formats;
  std::vector<uint64_t> aligned((size + 7) / 8);
  auto* bytes = reinterpret_cast<std::byte*>(aligned.data());
  if (size > 0) {
    std::memcpy(bytes, data, size);
  }
  if (size >= sizeof(TokenFileHeader)) {
    TokenFileHeader header;
    std::memcpy(&header, bytes, sizeof(header));
    header.magic = kTokenFileMagic;
    header.version = kTokenFileVersion;
    const size_t entries = (size - sizeof(header)) / sizeof(TokenFileEntry);
    if (header.sample_count <= entries) {
      header.checksum = TokenFileChecksum(
          header,
          {reinterpret_cast<const TokenFileEntry*>(bytes + sizeof(header)), header.sample_count});
    }
    std::memcpy(bytes, &header, sizeof(header));
  }
  const auto header = ParseTokenFileHeader({bytes, size}, static_cast<int64_t>(size));
  if (!header.ok()) {
    return 0;
  }
  const std::span<const TokenFileEntry> index = {
      reinterpret_cast<const TokenFileEntry*>(bytes + sizeof(TokenFileHeader)),
      header->sample_count};
  if (CheckTokenFileIndex(*header, index).ok()) {
    for (size_t i = 0; i < index.size(); ++i) {
      const auto at = [&](int64_t place) {
        return std::span(reinterpret_cast<const int32_t*>(bytes + place), index[i].tokens);
      };
      (void)CheckTokenSample(*header, index[i], static_cast<int64_t>(i),
                             at(TokensPlace(*header, index[i])),
                             at(LabelsPlace(*header, index[i])));
    }
  }
  return 0;
}
