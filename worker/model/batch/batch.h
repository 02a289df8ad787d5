// One microbatch: sequences packed one after the other, without padding. Attention and positions
// are per sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/data/token_file.h"
#include "core/job/job.h"
#include "worker/ops/dropout.h"

namespace shoal::worker {

// Of what adapters read, in training.
struct BatchDropout {
  double probability = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  std::vector<int64_t> samples;  // [sequences]; the two of a pair are of one
};

struct PackedBatch {
  std::vector<int32_t> tokens;  // [T]
  std::vector<int32_t>
      labels;  // [T]: the id to be predicted AT that position (already shifted), or kIgnoredLabel
  std::vector<float> weights;  // [T]: what a target counts for; empty: 1 each
  std::vector<int32_t> cu_seqlens = {
      0};  // [sequences + 1]: sequence s is [cu_seqlens[s], cu_seqlens[s + 1])
  // Of pairs: sequences 2i and 2i + 1 are a chosen and a rejected reply, whose loss this says.
  std::optional<plan::PreferenceOptions> preference;
  // [sequences], of pairs: log-probabilities that replies are compared with; empty: 0 each, or with
  // adapter-off what the model without its adapters gives.
  std::vector<double> references;
  std::optional<BatchDropout> dropout;  // none: adapters see all

  int64_t token_count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t target_count() const;

  // Appends a sequence; labels must be shifted already and as long as the tokens, and so must
  // weights be that are not empty. Ignores an empty one.
  void Append(std::span<const int32_t> sequence_tokens, std::span<const int32_t> sequence_labels,
              std::span<const float> sequence_weights = {});
  // Appends a sample's sequence, or the two of a pair.
  void Append(const formats::TokenSample& sample);
  // Makes every successor a target: labels[i] = tokens[i + 1], and none at the end.
  void AppendNextToken(std::span<const int32_t> sequence_tokens);
};

// Checks that sizes agree, sequences are non-empty and in order, ids and labels are within the
// vocabulary, and there is at least one token; of pairs, that sequences are two by two and have
// targets. A sequence may be longer than the model's
// max_positions: rotary embedding has no end, and training on longer ones is how models are
// extended.
absl::Status Validate(const PackedBatch& batch, int64_t vocabulary);

// Returns the position of every token within its sequence.
std::vector<int32_t> Positions(const PackedBatch& batch);
// Returns every token's sample and its position there; empty without dropout.
std::vector<DropoutRow> DropoutRows(const PackedBatch& batch);

// The result of a microbatch, besides gradients.
struct MicrobatchResult {
  // Unscaled sum of the cross entropies of all targets, each times its weight, in nats; of pairs,
  // that of their losses. May be non-finite.
  double loss_sum = 0;
  int64_t targets = 0;
  int64_t tokens = 0;
  std::vector<double> log_probabilities = {};  // [sequences], of pairs: of their targets, summed
  std::vector<double> references = {};         // what they were compared with, if it was made here
};

}  // namespace shoal::worker
