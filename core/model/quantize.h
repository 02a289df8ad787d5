// lora.quantize: as what servers keep, and workers fetch, the matrices of a frozen model's blocks.
#pragma once

#include <cstdint>

namespace shoal::plan {

enum class Quantize : uint8_t { kNone, kNf4 };

}  // namespace shoal::plan
