// A model's shape bound to a compute device: operators, layouts of its units, rotary tables and the
// memory for activations that is reused from microbatch to microbatch. It holds no weights: they
// come through a UnitSource, use by use.
//
// One Transformer serves one caller at a time (its activations are those of the current
// microbatch). On a device that computes asynchronously, requested work is done when the compute
// stream, ops().stream(), has reached it; calls that return its result wait for that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/loss_chunk.h"
#include "worker/backend/backend.h"
#include "worker/model/block.h"
#include "worker/model/workspace.h"
#include "worker/ops/compute_device.h"
#include "worker/ops/ops.h"
#include "worker/ops/rotary_table.h"

namespace shoal::worker {

// Options for the CPU.
struct TransformerOptions {
  DType compute = DType::kF32;
  int threads = 0;                  // 0: one per available core
  int64_t memory_budget_bytes = 0;  // for activations; 0: no limit
};

class Transformer {
 public:
  // `compute` is the type of weights (as the UnitSource returns them) and activations: kF32 or
  // kBF16. InvalidArgument for another one, and for a shape that plan::Validate refuses.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const plan::ModelSpec& spec,
                                                             DType compute,
                                                             ComputeDevice compute_device);
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const plan::ModelSpec& spec,
                                                             const TransformerOptions& options);
  // Waits for what is on the compute stream.
  ~Transformer();

  const plan::ModelSpec& spec() const { return spec_; }
  DType compute() const { return compute_; }
  const std::vector<plan::UnitSpec>& units() const { return units_; }
  const BlockLayout& layout(int unit) const { return layouts_[static_cast<size_t>(unit) - 1]; }
  // Of a block's adapters: their unit, -1 where it has none, and what is where in it.
  int adapter_unit(int unit) const {
    return uses_adapters_ ? plan::AdapterUnit(spec_, unit - 1) : -1;
  }
  // Whether they are part of the model, as they are at first; false: it computes without them.
  void UseAdapters(bool use) { uses_adapters_ = use; }
  const plan::AdapterLayout& adapter_layout(int unit) const {
    return adapter_layouts_[static_cast<size_t>(unit) - 1];
  }
  // For the head's loss, on this device.
  const plan::LossChunk& loss_chunk() const {
    return compute_device_.device->asynchronous() ? plan::kGpuLossChunk : plan::kCpuLossChunk;
  }
  Device& device() { return *compute_device_.device; }
  Ops& ops() { return *compute_device_.ops; }
  RotaryTables& rotary() { return rotary_; }
  Workspace& workspace() { return workspace_; }

  // What rows of the embedding are multiplied by.
  float embedding_scale() const;
  float logits_softcap() const { return static_cast<float>(spec_.logits_softcap); }
  // Caps logits on the host, as the loss does; without a cap it does nothing.
  void CapLogits(std::span<float> logits) const;

  // Units: 0 the embedding, 1..layers the blocks, layers + 1 the head. Unit `head_matrix_unit`
  // holds the head's matrix.
  int head_unit() const { return static_cast<int>(spec_.layers) + 1; }
  int head_matrix_unit() const { return spec_.tied_embeddings ? 0 : head_unit(); }
  int64_t head_matrix_offset() const {
    return spec_.tied_embeddings
               ? 0
               : units_[static_cast<size_t>(head_unit())].Find(plan::Role::kHead)->offset;
  }

 private:
  Transformer(const plan::ModelSpec& spec, DType compute, ComputeDevice compute_device);

  const plan::ModelSpec spec_;
  const DType compute_;
  const std::vector<plan::UnitSpec> units_;
  const std::vector<BlockLayout> layouts_;  // of the blocks
  const std::vector<plan::AdapterLayout> adapter_layouts_;
  bool uses_adapters_ = true;
  ComputeDevice compute_device_;
  RotaryTables rotary_;
  Workspace workspace_;
};

// Whether bf16 matrix products are faster than fp32 here (the CPU has AVX512-BF16 or AMX); decides
// `compute: auto`.
bool CpuHasFastBf16();

}  // namespace shoal::worker
