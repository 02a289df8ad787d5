// `shoal model init` makes a model with random weights in Hugging Face form, `shoal model show`
// describes a folder, `shoal model families` what kinds of models there are.
#pragma once

#include <cstdint>
#include <string>

#include "cli/run/command.h"

namespace shoal::cli {

struct ModelInitOptions {
  std::string shape;  // a name (plan::NamedShapes) or a config.json, or the folder that holds one
  uint64_t seed = 1;
  std::string output;
  std::string tokenizer;   // folder whose tokenizer goes with the model; empty: none
  int64_t vocabulary = 0;  // 0: the shape's, or for a named shape with a tokenizer, the tokenizer's
  std::string dtype = "fp32";
  bool json = false;
};
absl::StatusOr<ExitCode> RunModelInit(const ModelInitOptions& options, Streams& streams);

struct ModelShowOptions {
  std::string folder;
  bool json = false;
};
absl::StatusOr<ExitCode> RunModelShow(const ModelShowOptions& options, Streams& streams);

absl::StatusOr<ExitCode> RunModelFamilies(bool json, Streams& streams);

}  // namespace shoal::cli
