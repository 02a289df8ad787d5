// A unit of the model while it is worked on: its weights, held by scope, and where its gradient
// goes. What the model asks of source and sink is checked here.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/block.h"
#include "worker/model/transformer.h"

namespace shoal::worker {

// A unit's weights, released when this goes. Move-only.
class HeldUnit {
 public:
  // Checks that the view is what the model computes with.
  static absl::StatusOr<HeldUnit> Get(const Transformer& model, UnitSource& source, int unit);
  ~HeldUnit();
  HeldUnit(HeldUnit&& other) noexcept;
  HeldUnit& operator=(HeldUnit&&) = delete;

  ConstMatrix matrix(int64_t offset, int64_t rows, int64_t columns) const;
  ConstVector vector(int64_t offset, int64_t count) const;
  BlockWeights block(const Transformer& model) const;

 private:
  HeldUnit(UnitSource* source, int unit, WeightsView view)
      : source_(source), unit_(unit), view_(view) {}
  UnitSource* source_;
  int unit_;
  WeightsView view_;
};

// Where the unit's gradient goes, of the right size.
absl::StatusOr<UnitGradient> GradientOf(const Transformer& model, GradientSink& sink, int unit);

// All work on the contribution is on the compute stream.
absl::Status ContributionDone(Transformer& model, GradientSink& sink, int unit);

}  // namespace shoal::worker
