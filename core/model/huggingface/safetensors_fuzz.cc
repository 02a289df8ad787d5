#include <cstddef>
#include <cstdint>

#include "core/model/huggingface/safetensors.h"

// Reads every byte of every tensor, so that a span outside the file is caught.
volatile unsigned touched = 0;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::map<std::string, std::string> metadata;
  const auto tensors =
      shoal::formats::ParseSafetensors({reinterpret_cast<const std::byte*>(data), size}, &metadata);
  if (tensors.ok()) {
    for (const auto& [name, entry] : *tensors) {
      for (const std::byte byte : entry.data) {
        touched = touched + static_cast<unsigned>(byte);
      }
    }
  }
  return 0;
}
