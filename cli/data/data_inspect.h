// Describes a token file for `shoal data inspect`: a histogram of lengths, how they pack, and one
// sample with its loss mask. Pure except for reading the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/terminal/terminal.h"
#include "core/data/token_file.h"
#include "core/data/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {

struct LengthSummary {
  struct Bucket {
    int64_t low = 0;   // tokens, inclusive
    int64_t high = 0;  // inclusive
    int64_t samples = 0;
  };
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t targets = 0;
  int64_t shortest = 0;
  int64_t median = 0;
  int64_t p90 = 0;
  int64_t p99 = 0;
  int64_t longest = 0;
  std::vector<Bucket> buckets;  // powers of two
};
LengthSummary SummariseLengths(const formats::TokenFile& file);

// Compares, over one data pass, packing into microbatches with padding to each minibatch's longest.
struct PackingSummary {
  int64_t microbatch_tokens = 0;
  int64_t minibatch_samples = 0;
  int64_t steps = 0;
  int64_t microbatches = 0;
  double packed_fill = 0;  // real tokens over microbatch_tokens x microbatches
  double padded_fill = 0;  // real tokens over samples x longest of the minibatch
};
absl::StatusOr<PackingSummary> SummarisePacking(const formats::TokenFile& file,
                                                int64_t microbatch_tokens,
                                                int64_t minibatch_samples);

nlohmann::json ToJson(const LengthSummary& summary);
nlohmann::json ToJson(const PackingSummary& summary);
nlohmann::json SampleJson(int64_t index, const formats::TokenSample& sample,
                          const worker::Tokenizer* tokenizer);

std::string RenderHistogram(const LengthSummary& summary, const Terminal& terminal);
std::string RenderPacking(const PackingSummary& summary);
// Shows learnt text green, the rest dim; without colour, learnt text between U+27E6 and U+27E7.
std::string RenderSample(int64_t index, const formats::TokenSample& sample,
                         const worker::Tokenizer* tokenizer, const Terminal& terminal);

}  // namespace shoal::cli
