// `shoal data synth|tokenizer|prepare|inspect`: makes data, a tokenizer for it, the token file that
// training reads, and shows what is in a file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/cli/verb.h"

namespace shoal::cli {

struct DataSynthOptions {
  std::string kind = "mixed";
  int64_t samples = 1000;
  std::string lengths;  // empty: short and heavy-tailed
  uint64_t seed = 1;
  std::string output;
  bool json = false;
};
absl::StatusOr<ExitCode> RunDataSynth(const DataSynthOptions& options, Streams& streams);

struct DataTokenizerOptions {
  std::string input;
  int64_t vocabulary = 512;
  std::vector<std::string> fields;  // OURS=THEIRS
  std::string output;
  bool json = false;
};
absl::StatusOr<ExitCode> RunDataTokenizer(const DataTokenizerOptions& options, Streams& streams);

// How JSONL becomes tokens: the same choices as a job's data section.
struct DataSourceOptions {
  std::string input;
  std::string model;  // folder with the tokenizer and config.json
  std::string chat_template = "plain";
  std::vector<std::string> fields;  // OURS=THEIRS
  int64_t max_sequence_tokens = 2048;
  std::string oversize = "error";
};

struct DataPrepareOptions {
  DataSourceOptions source;
  std::string output;
  bool json = false;
};
absl::StatusOr<ExitCode> RunDataPrepare(const DataPrepareOptions& options, Streams& streams);

struct DataInspectOptions {
  DataSourceOptions source;
  int64_t microbatch_tokens = 4096;
  int64_t minibatch_samples = 32;
  int64_t sample = 0;  // the one shown
  bool json = false;
};
absl::StatusOr<ExitCode> RunDataInspect(const DataInspectOptions& options, Streams& streams);

// "prompt=question" entries as a map; InvalidArgument names one without '='.
absl::StatusOr<std::map<std::string, std::string>> ParseFields(
    const std::vector<std::string>& entries);

}  // namespace shoal::cli
