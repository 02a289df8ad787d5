// Data preparation: JSONL is tokenised once into a token file (core/data/token_file.h), which
// coordinator and workers map.
//
// What is broken (a line that is not JSON, an unknown role, an id outside of the vocabulary) ends
// preparation with "FILE:LINE: ...". What cannot be learnt from (no target token) or is too long
// (by policy) is left out, counted, and the first of each named.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/data/sample_encoder.h"
#include "core/job/job.h"

namespace shoal::worker {

struct PrepareOptions {
  std::map<std::string, std::string> fields;  // as plan::DataOptions::fields
  int64_t max_sequence_tokens = 2048;
  plan::OversizePolicy oversize = plan::OversizePolicy::kError;
  int threads = 0;  // 0: one per core
  // Called now and then with bytes of the input done and in all.
  std::function<void(int64_t, int64_t)> progress;
};

// The parts of a job's data section that matter here.
PrepareOptions PrepareOptionsOf(const plan::DataOptions& data);

struct PrepareSummary {
  int64_t samples = 0;  // written
  int64_t tokens = 0;
  int64_t targets = 0;
  int64_t longest = 0;           // tokens of the longest sample written
  int64_t truncated = 0;         // written, but cut to max_sequence_tokens
  int64_t skipped_oversize = 0;  // too long, or without a target once cut
  int64_t skipped_no_target = 0;
  std::string first_truncated;  // "FILE:LINE", empty if there was none
  std::string first_oversize;
  std::string first_no_target;

  bool operator==(const PrepareSummary&) const = default;
};

// One line for people: what was written and what was left out, and where first.
std::string Describe(const PrepareSummary& summary);

// Writes the token file `output`; it appears under its name only when complete. InvalidArgument if
// no sample remains.
absl::StatusOr<PrepareSummary> Prepare(const std::string& input, const std::string& output,
                                       const SampleEncoder& encoder, const PrepareOptions& options);

struct PreparedData {
  std::string path;         // of the token file
  bool from_cache = false;  // it was there already, or the input was a token file itself
  PrepareSummary summary;   // as counted when it was made; of a token file given as such, only what
                            // it says itself
};

// The token file for `input`: the input itself if it is one (checked against vocabulary, tokenizer
// and max_sequence_tokens), else one in `cache_directory` under a name made from the input's path,
// size and time of change, the tokenizer and the options, made if it is not there. Processes that
// race for it do no harm.
absl::StatusOr<PreparedData> PrepareCached(const std::string& input,
                                           const std::string& cache_directory,
                                           const SampleEncoder& encoder,
                                           const PrepareOptions& options);

}  // namespace shoal::worker
