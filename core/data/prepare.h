// Data preparation: tokenises samples once into a token file (core/data/token_file.h), which
// coordinator and workers map.
//
// Broken input (a line that is not JSON, an unknown role, an id outside the vocabulary) ends
// preparation with "FILE:LINE: ...". Samples without anything to learn (no target token) or too
// long (by policy) are left out and counted, and the first of each is named.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/data/sample_encoder.h"
#include "core/data/token_file.h"
#include "core/job/job.h"

namespace shoal::worker {

struct PrepareOptions {
  std::map<std::string, std::string> fields;  // same as plan::DataOptions::fields
  int64_t max_sequence_tokens = 2048;
  int64_t microbatch_tokens = 0;  // that both sequences of a pair have at most; 0: any number
  plan::OversizePolicy oversize = plan::OversizePolicy::kError;
  plan::Documents documents = plan::Documents::kPack;  // if that is what the encoder is for
  int threads = 0;                                     // 0: one per core
  // Called now and then with the bytes of the input done, and in all.
  std::function<void(int64_t, int64_t)> progress;
};

// Returns the relevant parts of a job's data section.
PrepareOptions PrepareOptionsOf(const plan::DataOptions& data);

struct PrepareSummary {
  int64_t samples = 0;    // written
  int64_t documents = 0;  // that they are of; 0: it is none
  int64_t tokens = 0;
  int64_t targets = 0;
  int64_t longest = 0;           // tokens of the longest sample written
  int64_t truncated = 0;         // written, but cut to max_sequence_tokens
  int64_t skipped_oversize = 0;  // too long, or without a target once cut
  int64_t skipped_no_target = 0;
  int64_t weighted = 0;         // written, with weights other than 1
  int64_t silent_messages = 0;  // of the assistant, of which the template wrote nothing
  int64_t rewritten = 0;  // whose template writes earlier replies otherwise once others follow
  std::string first_truncated;  // "FILE:LINE", empty if there was none
  std::string first_oversize;
  std::string first_no_target;
  std::string first_silent;
  std::string first_rewritten;

  bool operator==(const PrepareSummary&) const = default;
};

// What a token file itself says.
PrepareSummary SummaryOf(const formats::TokenFile& file);

// Says in one line what was written and what was left out, and where first.
std::string Describe(const PrepareSummary& summary);

// Writes the token file `output`, which appears under its name only when complete. InvalidArgument
// if no sample remains.
absl::StatusOr<PrepareSummary> Prepare(const std::string& input, const std::string& output,
                                       const SampleEncoder& encoder, const PrepareOptions& options);

// Whether the file is a token file.
absl::StatusOr<bool> IsTokenFile(const std::string& path);

struct PreparedData {
  std::string path;         // of the token file
  bool from_cache = false;  // it existed already, or the input was a token file itself
  // as counted when it was made; for a given token file, only what the file itself says
  PrepareSummary summary;
};

// Returns the token file for `input`: the input itself if it is one (checked against vocabulary,
// tokenizer and max_sequence_tokens), else one in `cache_directory`, made if missing. Its name is
// derived from the input's path, size and time of change, the tokenizer and the options. Safe if
// several processes make it concurrently.
absl::StatusOr<PreparedData> PrepareCached(const std::string& input,
                                           const std::string& cache_directory,
                                           const SampleEncoder& encoder,
                                           const PrepareOptions& options);

}  // namespace shoal::worker
