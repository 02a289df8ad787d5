// The bytes of a token file (see token_file.h) and checks of them in memory, shared by reader,
// writer, tests and fuzzing.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "core/data/token_file.h"

namespace shoal::formats {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

inline constexpr std::array<char, 8> kTokenFileMagic = {'S', 'H', 'O', 'A', 'L', 'T', 'O', 'K'};
inline constexpr uint32_t kTokenFileVersion = 1;

struct TokenFileHeader {
  std::array<char, 8> magic = kTokenFileMagic;
  uint32_t version = kTokenFileVersion;
  uint32_t reserved = 0;
  uint64_t sample_count = 0;
  uint64_t token_count = 0;
  uint64_t vocabulary = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t unused = 0;
  uint64_t checksum = 0;  // TokenFileChecksum of the fields above and the index
};
static_assert(sizeof(TokenFileHeader) == 64);

struct TokenFileEntry {
  uint64_t first_token = 0;
  uint32_t tokens = 0;
  uint32_t targets = 0;
};
static_assert(sizeof(TokenFileEntry) == 16);

struct TokenFileView {
  TokenFileHeader header;
  std::span<const TokenFileEntry> index;
  std::span<const int32_t> tokens;
  std::span<const int32_t> labels;
};

// Returns the XXH3-64 of the index, seeded with that of the header up to the checksum.
uint64_t TokenFileChecksum(const TokenFileHeader& header, std::span<const TokenFileEntry> index);

// Checks everything except the ids. `bytes` must be the whole file, at an address aligned to 8
// bytes.
absl::StatusOr<TokenFileView> ParseTokenFile(std::span<const std::byte> bytes);

// Returns one sample after checking its ids.
absl::StatusOr<TokenSample> ReadTokenSample(const TokenFileView& view, int64_t sample);

}  // namespace shoal::formats
