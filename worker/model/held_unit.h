// A unit of the model while it is worked on: its weights, held by scope, and where its gradient
// goes. Checks what source and sink return to the model.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/block.h"
#include "worker/model/transformer.h"

namespace shoal::worker {

// A unit's weights, released on destruction. Move-only.
class HeldUnit {
 public:
  // Checks that the view has the type and size with which the model computes.
  static absl::StatusOr<HeldUnit> Get(const Transformer& model, UnitSource& source, int unit);
  ~HeldUnit();
  HeldUnit(HeldUnit&& other) noexcept;
  HeldUnit& operator=(HeldUnit&&) = delete;

  ConstMatrix matrix(int64_t offset, int64_t rows, int64_t columns) const;
  ConstVector vector(int64_t offset, int64_t count) const;
  const void* data() const { return view_.data; }
  int unit() const { return unit_; }

 private:
  HeldUnit(UnitSource* source, int unit, WeightsView view)
      : source_(source), unit_(unit), view_(view) {}
  UnitSource* source_;
  int unit_;
  WeightsView view_;
};

// A block's weights, with those of its adapters.
class HeldBlock {
 public:
  static absl::StatusOr<HeldBlock> Get(const Transformer& model, UnitSource& source, int unit);
  // `dropout`: of its adapters' inputs, in training.
  BlockWeights weights(const Transformer& model, const DropoutMask& dropout = {}) const;

 private:
  explicit HeldBlock(HeldUnit block) : block_(std::move(block)) {}
  HeldUnit block_;
  std::optional<HeldUnit> adapters_;
};

// Returns where the unit's gradient goes, after checking its size; no sums if it is not wanted.
absl::StatusOr<UnitGradient> GradientOf(const Transformer& model, GradientSink& sink, int unit);

// Call when all work on the contribution, if it is wanted, is on the compute stream.
absl::Status ContributionDone(Transformer& model, GradientSink& sink, int unit);

}  // namespace shoal::worker
