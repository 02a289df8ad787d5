#include "core/base/dtype.h"

#include "core/base/status.h"

namespace shoal {

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(std::string_view name) {
  if (name == "F32" || name == "fp32" || name == "float32") {
    return DType::kF32;
  }
  if (name == "BF16" || name == "bf16" || name == "bfloat16") {
    return DType::kBF16;
  }
  if (name == "F16" || name == "fp16" || name == "float16") {
    return DType::kF16;
  }
  return InvalidArgument("'{}' is not an element type that shoal reads (F32, BF16, F16)", name);
}

}  // namespace shoal
