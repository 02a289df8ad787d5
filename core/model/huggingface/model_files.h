// The files of a model's weights, told from others of the same names: for processes that read one
// model each from a folder of their own machine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {

struct ModelFile {
  std::string name;  // within the model's folder
  int64_t bytes = 0;
  // XXH3-64 of its size, its header with the MiB that it begins with, and its last MiB.
  uint64_t fingerprint = 0;

  bool operator==(const ModelFile&) const = default;
};

// Of the weights in a model's folder. Reads a few MiB of each.
absl::StatusOr<std::vector<ModelFile>> ReadFiles(const std::string& folder);

// Whether a folder has these files. FailedPrecondition names the first that is another, NotFound
// one that is not there.
absl::Status CheckFiles(const std::string& folder, std::span<const ModelFile> files);

// Opens the model there, if it is read from these files and no others.
absl::StatusOr<std::unique_ptr<HfModel>> OpenSame(const std::string& folder,
                                                  std::span<const ModelFile> files);

}  // namespace shoal::formats
