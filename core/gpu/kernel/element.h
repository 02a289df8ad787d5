// The types of what kernels work on.
#pragma once

#include <cstdint>

namespace shoal::gpu {

enum class Element : uint8_t { kF32, kBf16 };

}  // namespace shoal::gpu
