// The element types on which kernels work.
#pragma once

#include <cstdint>

namespace shoal::gpu {

enum class Element : uint8_t { kF32, kBf16 };

}  // namespace shoal::gpu
