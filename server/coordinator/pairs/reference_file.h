// What a model gave pairs of replies before step 1, kept beside the token file for resumed runs and
// later jobs: little-endian, {magic "SHOALREF", version (u32), 0 (u32), how many (u64), checksum
// (u64)}, then the log-probabilities of replies (f64), NaN where they are not known yet. It is
// always written whole.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::server {

// What the references are of: pairs, and the model that they are taken with.
struct ReferenceSource {
  std::string token_file;
  std::string validation_file;  // empty: none
  std::string model;            // folder
  std::string adapter;          // folder; empty: none, or new ones, which change nothing yet
  std::string compute;          // type, "fp32"
  std::string wire;             // type of weights on the way to workers
  int64_t longest = 0;          // sequence, in tokens, where the model's rotation follows it
};

// Returns where they are kept: beside the token file, by a hash of what is in the files (of the
// model's weights, by samples of it).
absl::StatusOr<std::string> ReferencePath(const ReferenceSource& source);

absl::Status WriteReferences(const std::string& path, std::span<const double> references);
// NotFound if there is none, DataLoss if it is damaged.
absl::StatusOr<std::vector<double>> ReadReferences(const std::string& path);

}  // namespace shoal::server
