#include <cstddef>
#include <cstdint>

#include "core/model/huggingface/safetensors.h"

// Reads every byte of every tensor, so that a range outside the file is caught.
volatile unsigned touched = 0;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::map<std::string, std::string> metadata;
  const auto tensors = shoal::formats::ParseSafetensors(
      {reinterpret_cast<const std::byte*>(data), size}, static_cast<int64_t>(size), &metadata);
  if (tensors.ok()) {
    for (const auto& [name, entry] : *tensors) {
      for (int64_t at = entry.begin; at < entry.begin + entry.bytes; ++at) {
        touched = touched + data[at];
      }
    }
  }
  return 0;
}
