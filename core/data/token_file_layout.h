// The bytes of a token file (see token_file.h) and checks of them in memory, shared by reader,
// writer, tests and fuzzing.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/token_file.h"

namespace shoal::formats {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

inline constexpr std::array<char, 8> kTokenFileMagic = {'S', 'H', 'O', 'A', 'L', 'T', 'O', 'K'};
inline constexpr uint32_t kTokenFileVersion = 1;
inline constexpr uint32_t kTokenFileVersionOfMixture = 2;  // has sources
inline constexpr uint32_t kTokenFileVersionOfWeights = 3;  // has weights; may have sources
inline constexpr uint32_t kTokenFileVersionOfPairs = 4;    // of pairs; may have sources

struct TokenFileHeader {
  std::array<char, 8> magic = kTokenFileMagic;
  uint32_t version = kTokenFileVersion;
  uint32_t sources = 0;
  uint64_t sample_count = 0;
  uint64_t token_count = 0;
  uint64_t vocabulary = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t unused = 0;
  uint64_t checksum = 0;  // TokenFileChecksum of the fields above and the index

  bool has_weights() const { return version == kTokenFileVersionOfWeights; }
  bool has_pairs() const { return version == kTokenFileVersionOfPairs; }
};
static_assert(sizeof(TokenFileHeader) == 64);

struct TokenFileEntry {
  uint64_t first_token = 0;
  uint32_t tokens = 0;
  uint32_t targets = 0;
};
static_assert(sizeof(TokenFileEntry) == 16);
static_assert(sizeof(ChosenPart) == 8 && sizeof(double) == 8, "one or the other, at one place");

// What lies between header and tokens.
struct TokenFileIndex {
  std::span<const TokenFileEntry> entries;
  std::span<const uint64_t> sources;
  std::span<const double> weights;     // of samples
  std::span<const ChosenPart> chosen;  // of pairs
};

// Returns the XXH3-64 of the entries, seeded with that of the header up to the checksum; with
// sources, that of their counts, seeded with it, and so for weights and pairs.
uint64_t TokenFileChecksum(const TokenFileHeader& header, const TokenFileIndex& index);

// Checks the first bytes of a file of `file_bytes`; returns the header, whose counts fit the file.
absl::StatusOr<TokenFileHeader> ParseTokenFileHeader(std::span<const std::byte> head,
                                                     int64_t file_bytes);
// Checks the whole index against a header that was checked.
absl::Status CheckTokenFileIndex(const TokenFileHeader& header, const TokenFileIndex& index);
int64_t SourcesPlace(const TokenFileHeader& header);  // after the entries
int64_t SumsPlace(
    const TokenFileHeader& header);  // after the sources: weights of samples, or pairs
// Return where a sample's tokens, labels and weights begin in the file, in bytes.
int64_t TokensPlace(const TokenFileHeader& header, const TokenFileEntry& entry);
int64_t LabelsPlace(const TokenFileHeader& header, const TokenFileEntry& entry);
int64_t WeightPlace(const TokenFileHeader& header, const TokenFileEntry& entry);
// Checks the ids of a sample. Tokens and labels are as many as its entry says.
absl::Status CheckTokenSample(const TokenFileHeader& header, const TokenFileEntry& entry,
                              int64_t sample, std::span<const int32_t> tokens,
                              std::span<const int32_t> labels);
// Checks the weights of a sample whose targets weigh `sum`. They are as many as its labels.
absl::Status CheckTokenWeights(int64_t sample, std::span<const int32_t> labels,
                               std::span<const float> weights, double sum);
// Whether both sequences of a pair of `tokens` and `targets` have targets, and not at their end.
bool IsChosenPart(ChosenPart chosen, uint64_t tokens, uint64_t targets);
// Checks where the two sequences of a pair meet. The sample was checked.
absl::Status CheckPair(int64_t sample, std::span<const int32_t> labels, ChosenPart chosen);
// Adds up what targets weigh, in their order.
double SumOfWeights(std::span<const int32_t> labels, std::span<const float> weights);

}  // namespace shoal::formats
