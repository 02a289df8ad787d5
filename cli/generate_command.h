// `shoal generate`: text from a model folder, streamed to stdout as it comes.
#pragma once

#include <cstdint>
#include <string>

#include "cli/run/command.h"

namespace shoal::cli {

struct GenerateOptions {
  std::string model;
  std::string prompt;
  bool chat = false;                   // the prompt is one user turn, put through the template
  std::string chat_template = "auto";  // auto: the one whose tokens the tokenizer has
  int64_t max_new_tokens = 64;
  double temperature = 0;
  uint64_t seed = 1;
  std::string compute = "auto";
  bool json = false;
};
absl::StatusOr<ExitCode> RunGenerate(const GenerateOptions& options, Streams& streams);

}  // namespace shoal::cli
