#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/data/token_file_layout.h"

// Corrects version and checksum before parsing, so that the code after these checks is reached.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shoal::formats;
  std::vector<uint64_t> aligned((size + 7) / 8);
  auto* bytes = reinterpret_cast<std::byte*>(aligned.data());
  if (size > 0) {
    std::memcpy(bytes, data, size);
  }
  const auto index_of = [&](const TokenFileHeader& header) {
    return std::span(reinterpret_cast<const TokenFileEntry*>(bytes + sizeof(header)),
                     header.sample_count);
  };
  const auto sources_of = [&](const TokenFileHeader& header) {
    return std::span(reinterpret_cast<const uint64_t*>(bytes + SourcesPlace(header)),
                     header.sources);
  };
  if (size >= sizeof(TokenFileHeader)) {
    TokenFileHeader header;
    std::memcpy(&header, bytes, sizeof(header));
    header.magic = kTokenFileMagic;
    header.version = header.sources == 0 ? kTokenFileVersion : kTokenFileVersionOfMixture;
    const size_t entries = (size - sizeof(header)) / sizeof(TokenFileEntry);
    if (header.sample_count <= entries &&
        header.sources <= (size - static_cast<size_t>(SourcesPlace(header))) / sizeof(uint64_t)) {
      header.checksum = TokenFileChecksum(header, index_of(header), sources_of(header));
    }
    std::memcpy(bytes, &header, sizeof(header));
  }
  const auto header = ParseTokenFileHeader({bytes, size}, static_cast<int64_t>(size));
  if (!header.ok()) {
    return 0;
  }
  const std::span<const TokenFileEntry> index = index_of(*header);
  if (CheckTokenFileIndex(*header, index, sources_of(*header)).ok()) {
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
