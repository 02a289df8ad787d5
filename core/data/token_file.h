// The token file: a dataset tokenised once, which coordinator and workers read by sample. One file,
// little-endian:
//
//   header   {magic "SHOALTOK", version, sample count, token count, vocabulary size,
//            tokenizer hash, checksum of the index}
//   index    per sample: {first token (u64), tokens (u32), targets (u32)}
//   sources  of a mixture (version 2, or 3): how many samples each source has (u64), one after the
//            other
//   sums     with weights (version 3): what the targets of a sample weigh together (f64)
//   chosen   of pairs (version 4): of the sample's first sequence {tokens (u32), targets (u32)}
//   tokens   i32 ids, all samples one after the other
//   labels   i32, aligned with tokens: the id to be predicted AT that position (already
//            shifted by one: labels[i] is the token that follows tokens[i]), or -100 where
//            no loss is taken; a sample's last label is always -100
//   weights  (version 3) f32, aligned with labels: what the loss of a target counts for; 1 where no
//            loss is taken. Without them all are 1
//
// A sample of pairs is two sequences, one after the other: the chosen and the rejected reply, each
// behind its prompt. They go through the model together.
//
// The coordinator reads lengths, target counts and sums of weights to plan; workers read tokens,
// labels and weights. Both treat the file as hostile until Open has checked header, index bounds
// and checksum, and keep the index in memory; token ids and labels are checked against the
// vocabulary, and weights against their sum, when a sample is read.
// docs/data-formats.md describes the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::formats {

inline constexpr int32_t kIgnoredLabel = -100;

// What a target may weigh: beyond what anybody needs, and no sum is too large or too small to
// divide by.
inline constexpr float kLeastWeight = 1e-6f;
inline constexpr float kMostWeight = 1e6f;
inline bool IsWeight(float weight) { return weight >= kLeastWeight && weight <= kMostWeight; }

// The chosen one of a pair's two sequences.
struct ChosenPart {
  uint32_t tokens = 0;
  uint32_t targets = 0;

  bool operator==(const ChosenPart&) const = default;
};

struct TokenSample {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;  // shifted, see above
  int64_t targets = 0;          // labels that are not kIgnoredLabel
  std::vector<float> weights;   // of the labels; empty: 1 each
  ChosenPart chosen = {};       // of a pair
};

// Thread-safe.
class TokenFile {
 public:
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);
  ~TokenFile();

  int64_t samples() const;
  // How many are of each source, one source after the other; empty: it is no mixture.
  const std::vector<int64_t>& source_samples() const;
  int64_t tokens(int64_t sample) const;
  int64_t targets(int64_t sample) const;
  double weight(int64_t sample) const;      // of all its targets; of a pair, 1
  bool pairs() const;                       // whether samples are pairs
  ChosenPart chosen(int64_t sample) const;  // of a pair
  int64_t longest(int64_t sample) const;    // of its sequences, in tokens
  int64_t vocabulary() const;
  int64_t total_tokens() const;
  uint64_t tokenizer_hash() const;
  // Reads a sample and checks ids against the vocabulary. OutOfRange for a sample that does not
  // exist, DataLoss for a bad id.
  absl::StatusOr<TokenSample> Sample(int64_t sample) const;

 private:
  struct State;
  explicit TokenFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Writes samples as they come; the file appears under its name only at Finish (writes to a
// temporary file, syncs, renames).
class TokenFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(const std::string& path,
                                                                 int64_t vocabulary,
                                                                 uint64_t tokenizer_hash);
  ~TokenFileWriter();  // without Finish, removes what was written

  // Makes a mixture of it: samples that follow are of another source than those before.
  void BeginSource();
  // `labels` must be shifted already and as long as tokens, and so must `weights` be that are not
  // empty.
  absl::Status Add(std::span<const int32_t> tokens, std::span<const int32_t> labels,
                   std::span<const float> weights = {});
  // Adds a pair: chosen and rejected, one after the other. All samples of a file are pairs, or
  // none.
  absl::Status AddPair(std::span<const int32_t> tokens, std::span<const int32_t> labels,
                       ChosenPart chosen);
  // As it was read.
  absl::Status Add(const TokenSample& sample);
  absl::Status Finish();

 private:
  struct State;
  explicit TokenFileWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shoal::formats
