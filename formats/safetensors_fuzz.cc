#include <cstddef>
#include <cstdint>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::map<std::string, std::string> metadata;
  const auto tensors =
      shoal::formats::ParseSafetensors({reinterpret_cast<const std::byte*>(data), size}, &metadata);
  if (tensors.ok()) {
    volatile std::byte sink{};
    for (const auto& [name, entry] : *tensors) {
      for (const std::byte byte : entry.data) {
        sink = byte;
      }
    }
  }
  return 0;
}
