// A seeded generator of training data with checkable answers: conversations of short arithmetic,
// sorting and extraction tasks. The quick start trains on it from random weights, so tasks are
// small and regular enough for a model of a few million parameters to learn in minutes:
//
//   arithmetic   "What is 3 + 4?" "3 + 4 = 7"   "Now take 2." "7 - 2 = 5"
//                numbers from 0 to 10
//   sort         "Sort 4 1 3." "1 3 4"
//                three or four digits
//   extract      "Ana has 3 cups. Ben has 5 pens. Who has pens?" "Ben"   "How many cups?" "3 cups"
//   mixed        all of these within one conversation
//
// A conversation goes on until it has about as many tokens as its length, drawn from a
// (heavy-tailed) distribution, asks for. The same options give the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/chat_template.h"
#include "core/plan/step/lengths.h"

namespace shoal::worker {

enum class SynthKind { kArithmetic, kSort, kExtract, kMixed };
absl::StatusOr<SynthKind> ParseSynthKind(std::string_view name);

struct SynthOptions {
  SynthKind kind = SynthKind::kMixed;
  int64_t samples = 1000;
  // In tokens, with the template plain and a tokenizer trained on the set.
  plan::LengthDistribution lengths = {plan::LengthDistribution::Kind::kLognormal, 4.2, 0.7, 24,
                                      480};
  uint64_t seed = 1;
};

struct SynthSample {
  std::vector<ChatMessage> messages;  // the last one is the assistant's
  std::string answer;                 // its content
};

// Returns sample `index` of the set, which depends only on (kind, lengths, seed, index).
SynthSample MakeSynthSample(const SynthOptions& options, int64_t index);

// Returns {"messages": [...], "answer": "..."}.
std::string ToJsonLine(const SynthSample& sample);

// Writes the set as JSONL, atomically.
absl::Status WriteSynth(const SynthOptions& options, const std::string& path);

// Estimates how many tokens a message has in a conversation (words, digits and marks, and the
// role's).
int64_t EstimateTokens(const ChatMessage& message);

}  // namespace shoal::worker
