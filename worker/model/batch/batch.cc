#include "worker/model/batch/batch.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker {

int64_t PackedBatch::target_count() const {
  return std::count_if(labels.begin(), labels.end(),
                       [](int32_t label) { return label != formats::kIgnoredLabel; });
}

void PackedBatch::Append(std::span<const int32_t> sequence_tokens,
                         std::span<const int32_t> sequence_labels,
                         std::span<const float> sequence_weights) {
  SHOAL_CHECK(sequence_tokens.size() == sequence_labels.size());
  SHOAL_CHECK(sequence_weights.empty() || sequence_weights.size() == sequence_tokens.size());
  if (sequence_tokens.empty()) {
    return;
  }
  if (!weights.empty() || !sequence_weights.empty()) {
    weights.resize(tokens.size(), 1.0f);
    weights.insert(weights.end(), sequence_weights.begin(), sequence_weights.end());
    weights.resize(tokens.size() + sequence_tokens.size(), 1.0f);
  }
  tokens.insert(tokens.end(), sequence_tokens.begin(), sequence_tokens.end());
  labels.insert(labels.end(), sequence_labels.begin(), sequence_labels.end());
  cu_seqlens.push_back(static_cast<int32_t>(tokens.size()));
}

void PackedBatch::Append(const formats::TokenSample& sample) {
  const std::span<const int32_t> all = sample.tokens;
  const std::span<const int32_t> all_labels = sample.labels;
  const size_t chosen = sample.chosen.tokens;
  if (chosen == 0) {
    Append(all, all_labels, sample.weights);
    return;
  }
  Append(all.first(chosen), all_labels.first(chosen));
  Append(all.subspan(chosen), all_labels.subspan(chosen));
}

void PackedBatch::AppendNextToken(std::span<const int32_t> sequence_tokens) {
  if (sequence_tokens.empty()) {
    return;
  }
  std::vector<int32_t> next(sequence_tokens.begin() + 1, sequence_tokens.end());
  next.push_back(formats::kIgnoredLabel);
  Append(sequence_tokens, next);
}

namespace {

absl::Status ValidatePairs(const PackedBatch& batch) {
  if (batch.sequences() % 2 != 0 ||
      (!batch.references.empty() && std::ssize(batch.references) != batch.sequences())) {
    return InvalidArgument("microbatch of pairs: {} sequences and {} references", batch.sequences(),
                           batch.references.size());
  }
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    const auto begin = batch.labels.begin() + batch.cu_seqlens[s];
    const auto end = batch.labels.begin() + batch.cu_seqlens[s + 1];
    if (std::all_of(begin, end, [](int32_t label) { return label == formats::kIgnoredLabel; })) {
      return InvalidArgument("microbatch of pairs: sequence {} has no target", s);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const PackedBatch& batch, int64_t vocabulary) {
  if (batch.tokens.empty() || batch.labels.size() != batch.tokens.size()) {
    return InvalidArgument(
        "microbatch: {} tokens and {} labels; there must be as many of each, and one at least",
        batch.tokens.size(), batch.labels.size());
  }
  if (!batch.weights.empty() && batch.weights.size() != batch.tokens.size()) {
    return InvalidArgument("microbatch: {} weights for {} tokens", batch.weights.size(),
                           batch.tokens.size());
  }
  if (batch.cu_seqlens.empty() || batch.cu_seqlens.front() != 0 ||
      batch.cu_seqlens.back() != batch.token_count()) {
    return InvalidArgument("microbatch: cu_seqlens must go from 0 to the number of tokens, {}",
                           batch.token_count());
  }
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    if (batch.cu_seqlens[s + 1] <= batch.cu_seqlens[s]) {
      return InvalidArgument("microbatch: sequence {} has no token", s);
    }
  }
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= vocabulary) {
      return InvalidArgument(
          "microbatch: token {} at position {} is not within the vocabulary of {}", batch.tokens[i],
          i, vocabulary);
    }
    const int32_t label = batch.labels[i];
    if (label != formats::kIgnoredLabel && (label < 0 || label >= vocabulary)) {
      return InvalidArgument(
          "microbatch: label {} at position {} is not within the vocabulary of {}", label, i,
          vocabulary);
    }
    if (!batch.weights.empty() && !std::isfinite(batch.weights[i])) {
      return InvalidArgument("microbatch: the weight at position {} is {}", i, batch.weights[i]);
    }
  }
  if (batch.dropout.has_value() && std::ssize(batch.dropout->samples) != batch.sequences()) {
    return InvalidArgument("microbatch: {} sequences with dropout, of {} samples",
                           batch.sequences(), batch.dropout->samples.size());
  }
  return batch.preference.has_value() ? ValidatePairs(batch) : absl::OkStatus();
}

std::vector<int32_t> Positions(const PackedBatch& batch) {
  std::vector<int32_t> positions(batch.tokens.size());
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    for (int32_t t = batch.cu_seqlens[s]; t < batch.cu_seqlens[s + 1]; ++t) {
      positions[static_cast<size_t>(t)] = t - batch.cu_seqlens[s];
    }
  }
  return positions;
}

std::vector<DropoutRow> DropoutRows(const PackedBatch& batch) {
  std::vector<DropoutRow> rows;
  const bool pairs = batch.preference.has_value();
  for (size_t s = 0; batch.dropout.has_value() && s + 1 < batch.cu_seqlens.size(); ++s) {
    // A pair's second sequence goes on where its first ends.
    const int32_t begin = batch.cu_seqlens[pairs ? s / 2 * 2 : s];
    for (int32_t t = batch.cu_seqlens[s]; t < batch.cu_seqlens[s + 1]; ++t) {
      rows.push_back(
          {static_cast<uint32_t>(batch.dropout->samples[s]), static_cast<uint32_t>(t - begin)});
    }
  }
  return rows;
}

}  // namespace shoal::worker
