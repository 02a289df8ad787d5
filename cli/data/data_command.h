// `shoal data synth|tokenizer|prepare|inspect`: makes data, a tokenizer for it and the token file
// that training reads, and shows what a file holds. `shoal data preview` is in data_preview.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/data/data_source.h"
#include "cli/run/command.h"

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

}  // namespace shoal::cli
