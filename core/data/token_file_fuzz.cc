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
    return TokenFileIndex{
        .entries = {reinterpret_cast<const TokenFileEntry*>(bytes + sizeof(header)),
                    header.sample_count},
        .sources = {reinterpret_cast<const uint64_t*>(bytes + SourcesPlace(header)),
                    header.sources},
        .weights = {reinterpret_cast<const double*>(bytes + SumsPlace(header)),
                    header.has_weights() ? header.sample_count : 0},
        .chosen = {reinterpret_cast<const ChosenPart*>(bytes + SumsPlace(header)),
                   header.has_pairs() ? header.sample_count : 0}};
  };
  if (size >= sizeof(TokenFileHeader)) {
    TokenFileHeader header;
    std::memcpy(&header, bytes, sizeof(header));
    header.magic = kTokenFileMagic;
    header.version = header.has_weights()  ? kTokenFileVersionOfWeights
                     : header.has_pairs()  ? kTokenFileVersionOfPairs
                     : header.sources == 0 ? kTokenFileVersion
                                           : kTokenFileVersionOfMixture;
    const size_t entries = (size - sizeof(header)) / sizeof(TokenFileEntry);
    const auto fits = [&](int64_t place, uint64_t count) {  // numbers of 8 bytes
      return place <= static_cast<int64_t>(size) &&
             count <= (size - static_cast<size_t>(place)) / sizeof(uint64_t);
    };
    if (header.sample_count <= entries && fits(SourcesPlace(header), header.sources) &&
        fits(SumsPlace(header),
             header.has_weights() || header.has_pairs() ? header.sample_count : 0)) {
      header.checksum = TokenFileChecksum(header, index_of(header));
    }
    std::memcpy(bytes, &header, sizeof(header));
  }
  const auto header = ParseTokenFileHeader({bytes, size}, static_cast<int64_t>(size));
  if (!header.ok()) {
    return 0;
  }
  const TokenFileIndex index = index_of(*header);
  if (CheckTokenFileIndex(*header, index).ok()) {
    for (size_t i = 0; i < index.entries.size(); ++i) {
      const TokenFileEntry& entry = index.entries[i];
      const auto at = [&](int64_t place) {
        return std::span(reinterpret_cast<const int32_t*>(bytes + place), entry.tokens);
      };
      const auto labels = at(LabelsPlace(*header, entry));
      const auto sample = static_cast<int64_t>(i);
      (void)CheckTokenSample(*header, entry, sample, at(TokensPlace(*header, entry)), labels);
      if (header->has_weights()) {
        const auto* weights = reinterpret_cast<const float*>(bytes + WeightPlace(*header, entry));
        (void)CheckTokenWeights(sample, labels, {weights, entry.tokens}, index.weights[i]);
      }
      if (header->has_pairs()) {
        (void)CheckPair(sample, labels, index.chosen[i]);
      }
    }
  }
  return 0;
}
