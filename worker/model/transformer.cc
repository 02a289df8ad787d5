#include "worker/model/transformer.h"

#include <utility>

#include "core/base/status.h"
#include "worker/ops/cpu/instructions.h"

namespace shoal::worker {

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const plan::ModelSpec& spec,
                                                                 DType compute, Machine machine) {
  SHOAL_RETURN_IF_ERROR(plan::Validate(spec));
  SHOAL_RETURN_IF_ERROR(ValidateLayout(spec));
  if (compute != DType::kF32 && compute != DType::kBF16) {
    return InvalidArgument("compute type {}: must be fp32 or bf16", Name(compute));
  }
  return std::unique_ptr<Transformer>(new Transformer(spec, compute, std::move(machine)));
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    const plan::ModelSpec& spec, const TransformerOptions& options) {
  return Create(spec, options.compute,
                MakeCpuMachine(options.threads, options.memory_budget_bytes));
}

Transformer::Transformer(const plan::ModelSpec& spec, DType compute, Machine machine)
    : spec_(spec),
      compute_(compute),
      units_(plan::BuildUnits(spec)),
      layout_(MakeBlockLayout(spec)),
      machine_(std::move(machine)),
      rotary_(spec, *machine_.device),
      workspace_(*machine_.device, machine_.ops->stream()) {}

Transformer::~Transformer() { machine_.ops->stream().Synchronize().IgnoreError(); }

bool CpuHasFastBf16() { return cpu::HasNativeBf16(); }

}  // namespace shoal::worker
