#include "core/data/token_file_layout.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::formats {
namespace {

// Ids are int32.
constexpr uint64_t kMaxVocabulary = std::numeric_limits<int32_t>::max();

absl::Status CheckHeader(const TokenFileHeader& header, uint64_t file_bytes) {
  if (header.magic != kTokenFileMagic) {
    return InvalidArgument("not a token file (it does not start with SHOALTOK)");
  }
  if (header.version < kTokenFileVersion || header.version > kTokenFileVersionOfPairs) {
    return InvalidArgument(
        "token file version {}, this program reads versions {} to {}; prepare the data again",
        header.version, kTokenFileVersion, kTokenFileVersionOfPairs);
  }
  const bool sources_fit = header.has_weights() || header.has_pairs() ||
                           (header.sources == 0) == (header.version == kTokenFileVersion);
  if (!sources_fit || header.unused != 0) {
    return DataLoss("damaged header (reserved fields are not zero)");
  }
  if (header.vocabulary == 0 || header.vocabulary > kMaxVocabulary) {
    return DataLoss("damaged header (vocabulary size {})", header.vocabulary);
  }
  // Bounding the counts by the file's size first keeps the sum below from overflowing.
  const bool counts_possible = header.sample_count <= file_bytes / sizeof(TokenFileEntry) &&
                               header.token_count <= file_bytes / sizeof(int32_t);
  const uint64_t expected =
      sizeof(TokenFileHeader) + header.sample_count * sizeof(TokenFileEntry) +
      header.sources * sizeof(uint64_t) + header.token_count * 2 * sizeof(int32_t) +
      (header.has_weights() || header.has_pairs() ? header.sample_count * sizeof(double) : 0) +
      (header.has_weights() ? header.token_count * sizeof(float) : 0);
  if (!counts_possible || expected != file_bytes) {
    return DataLoss(
        "{} bytes do not hold the {} samples and {} tokens its header announces; "
        "truncated? prepare the data again",
        file_bytes, header.sample_count, header.token_count);
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const TokenFileHeader& header, std::span<const TokenFileEntry> index) {
  uint64_t next = 0;
  for (size_t i = 0; i < index.size(); ++i) {
    const TokenFileEntry& entry = index[i];
    if (entry.first_token != next || entry.tokens == 0 || entry.targets >= entry.tokens ||
        entry.tokens > header.token_count - next) {
      return DataLoss("index entry of sample {} is out of bounds; prepare the data again", i);
    }
    next += entry.tokens;
  }
  if (next != header.token_count) {
    return DataLoss("the index covers {} of {} tokens; prepare the data again", next,
                    header.token_count);
  }
  return absl::OkStatus();
}

absl::Status CheckSources(const TokenFileHeader& header, std::span<const uint64_t> sources) {
  uint64_t left = header.sample_count;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == 0 || sources[i] > left) {
      return DataLoss("source {} is said to have {} samples; prepare the data again", i,
                      sources[i]);
    }
    left -= sources[i];
  }
  return sources.empty() || left == 0
             ? absl::OkStatus()
             : DataLoss("{} samples are of no source; prepare the data again", left);
}

absl::Status CheckSums(const TokenFileIndex& index) {
  for (size_t i = 0; i < index.weights.size(); ++i) {
    const double targets = index.entries[i].targets;
    const double least = 0.5 * static_cast<double>(kLeastWeight) * targets;  // rounding is far less
    if (!(index.weights[i] >= least && index.weights[i] <= kMostWeight * targets)) {
      return DataLoss("the {} targets of sample {} are said to weigh {}; prepare the data again",
                      index.entries[i].targets, i, index.weights[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckChosen(const TokenFileIndex& index) {
  for (size_t i = 0; i < index.chosen.size(); ++i) {
    const TokenFileEntry& both = index.entries[i];
    const ChosenPart& chosen = index.chosen[i];
    if (!IsChosenPart(chosen, both.tokens, both.targets)) {
      return DataLoss(
          "{} of the {} tokens of pair {} are said to be chosen, and {} of its {} targets; prepare "
          "the data again",
          chosen.tokens, both.tokens, i, chosen.targets, both.targets);
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsChosenPart(ChosenPart chosen, uint64_t tokens, uint64_t targets) {
  return chosen.targets > 0 && chosen.targets < targets && chosen.targets < chosen.tokens &&
         chosen.tokens < tokens && targets - chosen.targets < tokens - chosen.tokens;
}

uint64_t TokenFileChecksum(const TokenFileHeader& header, const TokenFileIndex& index) {
  uint64_t hash = XXH3_64bits(&header, offsetof(TokenFileHeader, checksum));
  hash = XXH3_64bits_withSeed(index.entries.data(), index.entries.size_bytes(), hash);
  for (const std::span<const std::byte> part :
       {std::as_bytes(index.sources), std::as_bytes(index.weights), std::as_bytes(index.chosen)}) {
    hash = part.empty() ? hash : XXH3_64bits_withSeed(part.data(), part.size(), hash);
  }
  return hash;
}

absl::StatusOr<TokenFileHeader> ParseTokenFileHeader(std::span<const std::byte> head,
                                                     int64_t file_bytes) {
  TokenFileHeader header;
  if (head.size() < sizeof(header)) {
    return InvalidArgument("not a token file ({} bytes)", head.size());
  }
  std::memcpy(&header, head.data(), sizeof(header));
  SHOAL_RETURN_IF_ERROR(CheckHeader(header, static_cast<uint64_t>(file_bytes)));
  return header;
}

absl::Status CheckTokenFileIndex(const TokenFileHeader& header, const TokenFileIndex& index) {
  if (TokenFileChecksum(header, index) != header.checksum) {
    return DataLoss("checksum mismatch in header or index; prepare the data again");
  }
  SHOAL_RETURN_IF_ERROR(CheckSources(header, index.sources));
  SHOAL_RETURN_IF_ERROR(CheckOrder(header, index.entries));
  SHOAL_RETURN_IF_ERROR(CheckSums(index));
  return CheckChosen(index);
}

int64_t SourcesPlace(const TokenFileHeader& header) {
  return static_cast<int64_t>(sizeof(header) + header.sample_count * sizeof(TokenFileEntry));
}

int64_t SumsPlace(const TokenFileHeader& header) {
  return SourcesPlace(header) + static_cast<int64_t>(header.sources * sizeof(uint64_t));
}

int64_t TokensPlace(const TokenFileHeader& header, const TokenFileEntry& entry) {
  const uint64_t sums = header.has_weights() || header.has_pairs() ? header.sample_count : 0;
  return SumsPlace(header) +
         static_cast<int64_t>(sums * sizeof(double) + entry.first_token * sizeof(int32_t));
}

int64_t LabelsPlace(const TokenFileHeader& header, const TokenFileEntry& entry) {
  return TokensPlace(header, entry) + static_cast<int64_t>(header.token_count * sizeof(int32_t));
}

int64_t WeightPlace(const TokenFileHeader& header, const TokenFileEntry& entry) {
  return LabelsPlace(header, entry) + static_cast<int64_t>(header.token_count * sizeof(int32_t));
}

absl::Status CheckTokenSample(const TokenFileHeader& header, const TokenFileEntry& entry,
                              int64_t sample, std::span<const int32_t> tokens,
                              std::span<const int32_t> labels) {
  SHOAL_CHECK(tokens.size() == entry.tokens && labels.size() == entry.tokens);
  const auto vocabulary = static_cast<int64_t>(header.vocabulary);
  int64_t targets = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    const int32_t label = labels[i];
    const bool is_target = label != kIgnoredLabel;
    if (token < 0 || token >= vocabulary || (is_target && (label < 0 || label >= vocabulary))) {
      return DataLoss("sample {} position {}: token {} or label {} is outside the vocabulary of {}",
                      sample, i, token, label, vocabulary);
    }
    targets += is_target ? 1 : 0;
  }
  if (targets != entry.targets || labels.back() != kIgnoredLabel) {
    return DataLoss("sample {} has {} targets where its index entry says {}, or one at its end",
                    sample, targets, entry.targets);
  }
  return absl::OkStatus();
}

absl::Status CheckPair(int64_t sample, std::span<const int32_t> labels, ChosenPart chosen) {
  const auto of_chosen = labels.first(chosen.tokens);
  const auto targets = std::ssize(of_chosen) - std::ranges::count(of_chosen, kIgnoredLabel);
  return targets == chosen.targets && of_chosen.back() == kIgnoredLabel
             ? absl::OkStatus()
             : DataLoss(
                   "pair {}: what was chosen has {} targets where the index says {}, or one at "
                   "its end",
                   sample, targets, chosen.targets);
}

double SumOfWeights(std::span<const int32_t> labels, std::span<const float> weights) {
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const float weight = weights.empty() ? 1.0f : weights[i];
    sum += labels[i] == kIgnoredLabel ? 0.0 : static_cast<double>(weight);
  }
  return sum;
}

absl::Status CheckTokenWeights(int64_t sample, std::span<const int32_t> labels,
                               std::span<const float> weights, double sum) {
  SHOAL_CHECK(weights.size() == labels.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    if (labels[i] == kIgnoredLabel ? weights[i] != 1.0f : !IsWeight(weights[i])) {
      return DataLoss("sample {} position {}: the weight {} is not possible there", sample, i,
                      weights[i]);
    }
  }
  if (SumOfWeights(labels, weights) != sum) {
    return DataLoss("sample {}: its targets weigh {} where the index says {}", sample,
                    SumOfWeights(labels, weights), sum);
  }
  return absl::OkStatus();
}

}  // namespace shoal::formats
