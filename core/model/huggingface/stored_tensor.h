// A tensor of a safetensors file, read as floats. Internal to this folder.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/model/huggingface/safetensors.h"

namespace shoal::formats {

// A tensor and the file that it is in.
struct StoredTensor {
  const SafetensorsFile* file = nullptr;
  SafetensorsEntry entry;

  // Fills `out` with its elements from `begin` on, converted.
  absl::Status Read(int64_t begin, std::span<float> out) const;
};

// "[3, 4]".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace shoal::formats
