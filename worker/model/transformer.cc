#include "worker/model/transformer.h"

#include <cmath>
#include <utility>

#include "core/base/bf16.h"
#include "core/base/status.h"
#include "worker/ops/cpu/instructions.h"

namespace shoal::worker {
namespace {

std::vector<BlockLayout> LayoutsOf(const std::vector<plan::UnitSpec>& units) {
  std::vector<BlockLayout> layouts;
  for (const plan::UnitSpec& unit : units) {
    if (unit.kind == plan::UnitKind::kBlock) {
      layouts.emplace_back(MakeBlockLayout(unit));
    }
  }
  return layouts;
}

std::vector<plan::AdapterLayout> AdapterLayoutsOf(const plan::ModelSpec& spec,
                                                  const std::vector<plan::UnitSpec>& units) {
  std::vector<plan::AdapterLayout> layouts;
  for (const plan::UnitSpec& unit : units) {
    if (unit.kind == plan::UnitKind::kBlock) {
      layouts.push_back(plan::LayoutOfAdapters(spec, unit));
    }
  }
  return layouts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const plan::ModelSpec& spec,
                                                                 DType compute,
                                                                 ComputeDevice compute_device) {
  SHOAL_RETURN_IF_ERROR(plan::Validate(spec));
  SHOAL_RETURN_IF_ERROR(ValidateLayout(spec));
  if (compute != DType::kF32 && compute != DType::kBF16) {
    return InvalidArgument("compute type {}: must be fp32 or bf16", Name(compute));
  }
  return std::unique_ptr<Transformer>(new Transformer(spec, compute, std::move(compute_device)));
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    const plan::ModelSpec& spec, const TransformerOptions& options) {
  return Create(spec, options.compute,
                MakeCpuComputeDevice(options.threads, options.memory_budget_bytes));
}

Transformer::Transformer(const plan::ModelSpec& spec, DType compute, ComputeDevice compute_device)
    : spec_(spec),
      compute_(compute),
      units_(plan::BuildUnits(spec)),
      layouts_(LayoutsOf(units_)),
      adapter_layouts_(AdapterLayoutsOf(spec, units_)),
      compute_device_(std::move(compute_device)),
      rotary_(spec, *compute_device_.device),
      workspace_(*compute_device_.device, compute_device_.ops->stream()) {}

float Transformer::embedding_scale() const {
  if (!spec_.scaled_embeddings) {
    return 1.0f;
  }
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(spec_.hidden)));
  return compute_ == DType::kF32 ? scale : static_cast<float>(BFloat16(scale));
}

void Transformer::CapLogits(std::span<float> logits) const {
  const float cap = logits_softcap();
  if (cap == 0) {
    return;
  }
  for (float& logit : logits) {
    logit = cap * std::tanh(logit / cap);
  }
}

Transformer::~Transformer() { compute_device_.ops->stream().Synchronize().IgnoreError(); }

bool CpuHasFastBf16() { return cpu::HasNativeBf16(); }

}  // namespace shoal::worker
