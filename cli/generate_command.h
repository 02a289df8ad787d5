// `shoal generate`: text from a model folder, streamed to stdout as it comes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/run/command.h"

namespace shoal::cli {

struct GenerateOptions {
  std::string model;
  std::string adapter;                 // a folder of PEFT's; empty: none
  std::vector<std::string> prompts;    // "-": all of the input is one
  std::string prompts_file;            // a prompt a line; "-": of the input
  bool chat = false;                   // a prompt is a user's turn, put through the template
  std::string chat_template = "auto";  // as worker::ChooseTemplate
  std::vector<std::string> template_arguments;  // NAME=VALUE
  int64_t max_new_tokens = 64;
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  std::vector<std::string> stops;  // texts that end a continuation, and are no part of it
  uint64_t seed = 1;
  std::string compute = "auto";
  bool json = false;
};
// With --chat and no prompt, each line of the input is a turn of one conversation.
absl::StatusOr<ExitCode> RunGenerate(const GenerateOptions& options, Streams& streams);

}  // namespace shoal::cli
