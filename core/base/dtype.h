// Element types of tensors, as safetensors names them.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace shoal {

enum class DType : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Returns "F32", "BF16", "F16" (safetensors' names).
std::string_view Name(DType dtype);
// Also accepts "fp32", "float32", "bf16", "bfloat16", "fp16", "float16".
absl::StatusOr<DType> ParseDType(std::string_view name);

}  // namespace shoal
