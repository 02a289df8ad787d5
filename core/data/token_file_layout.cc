#include "core/data/token_file_layout.h"

#include <xxhash.h>

#include <cstring>
#include <limits>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::formats {
namespace {

// Ids are int32.
constexpr uint64_t kMaxVocabulary = std::numeric_limits<int32_t>::max();

absl::Status CheckHeader(const TokenFileHeader& header, size_t file_bytes) {
  if (header.magic != kTokenFileMagic) {
    return InvalidArgument("not a token file (it does not start with SHOALTOK)");
  }
  if (header.version != kTokenFileVersion) {
    return InvalidArgument(
        "token file version {}, this program reads version {}; prepare the data again",
        header.version, kTokenFileVersion);
  }
  if (header.reserved != 0 || header.unused != 0) {
    return DataLoss("damaged header (reserved fields are not zero)");
  }
  if (header.vocabulary == 0 || header.vocabulary > kMaxVocabulary) {
    return DataLoss("damaged header (vocabulary size {})", header.vocabulary);
  }
  // Bounding the counts by the file's size first keeps the sum below from overflowing.
  const bool counts_possible = header.sample_count <= file_bytes / sizeof(TokenFileEntry) &&
                               header.token_count <= file_bytes / sizeof(int32_t);
  const uint64_t expected = sizeof(TokenFileHeader) + header.sample_count * sizeof(TokenFileEntry) +
                            header.token_count * 2 * sizeof(int32_t);
  if (!counts_possible || expected != file_bytes) {
    return DataLoss(
        "{} bytes do not hold the {} samples and {} tokens its header announces; "
        "truncated? prepare the data again",
        file_bytes, header.sample_count, header.token_count);
  }
  return absl::OkStatus();
}

absl::Status CheckIndex(const TokenFileView& view) {
  uint64_t next = 0;
  for (size_t i = 0; i < view.index.size(); ++i) {
    const TokenFileEntry& entry = view.index[i];
    if (entry.first_token != next || entry.tokens == 0 || entry.targets >= entry.tokens ||
        entry.tokens > view.header.token_count - next) {
      return DataLoss("index entry of sample {} is out of bounds; prepare the data again", i);
    }
    next += entry.tokens;
  }
  if (next != view.header.token_count) {
    return DataLoss("the index covers {} of {} tokens; prepare the data again", next,
                    view.header.token_count);
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t TokenFileChecksum(const TokenFileHeader& header, std::span<const TokenFileEntry> index) {
  const uint64_t seed = XXH3_64bits(&header, offsetof(TokenFileHeader, checksum));
  return XXH3_64bits_withSeed(index.data(), index.size_bytes(), seed);
}

absl::StatusOr<TokenFileView> ParseTokenFile(std::span<const std::byte> bytes) {
  SHOAL_CHECK(reinterpret_cast<uintptr_t>(bytes.data()) % alignof(TokenFileEntry) == 0);
  if (bytes.size() < sizeof(TokenFileHeader)) {
    return InvalidArgument("not a token file ({} bytes)", bytes.size());
  }
  TokenFileView view;
  std::memcpy(&view.header, bytes.data(), sizeof(TokenFileHeader));
  SHOAL_RETURN_IF_ERROR(CheckHeader(view.header, bytes.size()));
  const std::byte* at = bytes.data() + sizeof(TokenFileHeader);
  view.index = {reinterpret_cast<const TokenFileEntry*>(at), view.header.sample_count};
  at += view.index.size_bytes();
  view.tokens = {reinterpret_cast<const int32_t*>(at), view.header.token_count};
  at += view.tokens.size_bytes();
  view.labels = {reinterpret_cast<const int32_t*>(at), view.header.token_count};
  if (TokenFileChecksum(view.header, view.index) != view.header.checksum) {
    return DataLoss("checksum mismatch in header or index; prepare the data again");
  }
  SHOAL_RETURN_IF_ERROR(CheckIndex(view));
  return view;
}

absl::StatusOr<TokenSample> ReadTokenSample(const TokenFileView& view, int64_t sample) {
  if (sample < 0 || sample >= static_cast<int64_t>(view.index.size())) {
    return OutOfRange("sample {} does not exist, there are {}", sample, view.index.size());
  }
  const TokenFileEntry& entry = view.index[static_cast<size_t>(sample)];
  const TokenSample result{.tokens = view.tokens.subspan(entry.first_token, entry.tokens),
                           .labels = view.labels.subspan(entry.first_token, entry.tokens),
                           .targets = entry.targets};
  const auto vocabulary = static_cast<int64_t>(view.header.vocabulary);
  int64_t targets = 0;
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    const int32_t token = result.tokens[i];
    const int32_t label = result.labels[i];
    const bool is_target = label != kIgnoredLabel;
    if (token < 0 || token >= vocabulary || (is_target && (label < 0 || label >= vocabulary))) {
      return DataLoss("sample {} position {}: token {} or label {} is outside the vocabulary of {}",
                      sample, i, token, label, vocabulary);
    }
    targets += is_target ? 1 : 0;
  }
  if (targets != result.targets || result.labels.back() != kIgnoredLabel) {
    return DataLoss("sample {} has {} targets where its index entry says {}, or one at its end",
                    sample, targets, result.targets);
  }
  return result;
}

}  // namespace shoal::formats
