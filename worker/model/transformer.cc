#include "worker/model/transformer.h"

#include "common/status.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/cpu/gemm.h"

namespace shoal::worker {

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    const plan::ModelSpec& spec, const TransformerOptions& options) {
  SHOAL_RETURN_IF_ERROR(plan::Validate(spec));
  SHOAL_RETURN_IF_ERROR(ValidateLayout(spec));
  if (options.compute != DType::kF32 && options.compute != DType::kBF16) {
    return InvalidArgument("compute type {}: must be fp32 or bf16", Name(options.compute));
  }
  return std::unique_ptr<Transformer>(new Transformer(spec, options));
}

Transformer::Transformer(const plan::ModelSpec& spec, const TransformerOptions& options)
    : spec_(spec),
      compute_(options.compute),
      units_(plan::BuildUnits(spec)),
      layout_(MakeBlockLayout(spec)),
      device_(MakeCpuDevice(options.memory_budget_bytes)),
      ops_(MakeCpuOps(*device_, options.threads)),
      rotary_(spec),
      workspace_(*device_) {}

Transformer::~Transformer() = default;

bool CpuHasFastBf16() { return cpu::HasNativeBf16(); }

}  // namespace shoal::worker
