// Looking at a prepared dataset, for `shoal data inspect`: how long samples are, what packing makes
// of them, and one sample with its loss mask. Pure functions over an opened token file; text for
// people, JSON for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/token_file.h"
#include "nlohmann/json_fwd.hpp"
#include "plan/cost_model.h"
#include "worker/data/tokenizer.h"

namespace shoal::worker {

struct LengthReport {
  // Samples with low <= tokens < 2 * low.
  struct Bucket {
    int64_t low = 0;
    int64_t samples = 0;
    int64_t tokens = 0;
  };
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t targets = 0;
  int64_t shortest = 0;
  int64_t p50 = 0;  // quantiles of the tokens of a sample
  int64_t p90 = 0;
  int64_t p99 = 0;
  int64_t longest = 0;
  std::vector<Bucket> buckets;  // ascending, without gaps; powers of two
};
LengthReport ReportLengths(const formats::TokenFile& file);
// The counts on one line and a bar per bucket, at most `columns` wide.
std::string ToText(const LengthReport& report, int columns);
nlohmann::json ToJson(const LengthReport& report);

struct PackingOptions {
  int workers = 1;
  int64_t microbatch_tokens = 4096;
  int64_t minibatch_samples = 32;
  int64_t steps = 16;  // how many are planned
  uint64_t seed = 1;
  bool shuffle = true;
};
struct PackingReport {
  int64_t steps = 0;
  int64_t microbatches = 0;         // of all steps and workers
  int64_t fewest_microbatches = 0;  // of a worker in a step
  int64_t most_microbatches = 0;
  double fill = 0;     // tokens / (microbatches * microbatch_tokens)
  double balance = 0;  // mean / largest cost of a worker, averaged over steps: 1 is even
};
// Plans the first steps as the coordinator would. InvalidArgument for a sample that fits no
// microbatch.
absl::StatusOr<PackingReport> ReportPacking(const formats::TokenFile& file,
                                            const PackingOptions& options,
                                            const plan::SequenceCost& cost);
std::string ToText(const PackingReport& report, const PackingOptions& options);
nlohmann::json ToJson(const PackingReport& report);

// A run of tokens that all are, or all are not, to be predicted.
struct MaskedRun {
  std::string text;
  int64_t tokens = 0;
  bool is_target = false;
};
// `tokenizer` may be null: then the runs' texts are ids.
absl::StatusOr<std::vector<MaskedRun>> ReportSample(const formats::TokenFile& file, int64_t sample,
                                                    const Tokenizer* tokenizer);
// Targets in green where `colour`, else between [[ and ]]. Control characters other than line ends
// are written out, so that data cannot drive the terminal.
std::string ToText(const std::vector<MaskedRun>& runs, bool colour);
nlohmann::json ToJson(const std::vector<MaskedRun>& runs);

}  // namespace shoal::worker
