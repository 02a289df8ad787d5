// `shoal eval`: how well a model folder does on a file: loss per target token, and exact match
// where the data has answers that can be checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/data/data_command.h"
#include "cli/run/command.h"

namespace shoal::cli {

struct EvalOptions {
  DataSourceOptions source;
  std::string adapter;  // a folder of PEFT's; empty: none
  int64_t microbatch_tokens = 4096;
  int64_t limit = 0;             // samples for the loss; 0: all
  int64_t answers = 100;         // at most this many replies are generated and checked; 0: none
  int64_t max_new_tokens = 128;  // of a reply
  std::string compute = "auto";
  bool json = false;
};
absl::StatusOr<ExitCode> RunEval(const EvalOptions& options, Streams& streams);

}  // namespace shoal::cli
