#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/model/huggingface/hf_model.h"

// A model that parses must be the same after writing and reading it back.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto spec =
      shoal::formats::ParseModelSpec({reinterpret_cast<const char*>(data), size}, "f");
  if (spec.ok()) {
    const auto reread = shoal::formats::ParseModelSpec(
        shoal::formats::ModelSpecToJson(*spec, shoal::DType::kF32, {}), "f");
    if (!reread.ok() || *reread != *spec) {
      std::abort();
    }
  }
  return 0;
}
