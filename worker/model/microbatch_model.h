// What a worker runs its microbatches on: the transformer on this machine's processor, or an
// emulated device (worker/paced). Only the compute thread uses it.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/model/model_spec.h"
#include "worker/model/runner.h"

namespace shoal::worker {

class MicrobatchModel {
 public:
  virtual ~MicrobatchModel() = default;
  // The model whose weights travel.
  virtual const plan::ModelSpec& spec() const = 0;
  virtual const std::vector<plan::UnitSpec>& units() const = 0;
  // Same as RunMicrobatch (runner.h); of pairs that are compared with the model without its
  // adapters, after a forward pass and loss of that, whose sums are in the result. A batch without
  // tokens also walks over the units, with nothing to compute: if workers wait for each other at
  // layers, each must reach all of them.
  virtual absl::StatusOr<MicrobatchResult> Run(const PackedBatch& batch, double loss_scale,
                                               UnitSource& source, GradientSink& sink) = 0;
  // Same as EvaluateLoss; of such pairs, and of a batch without tokens, as above.
  virtual absl::StatusOr<MicrobatchResult> Evaluate(const PackedBatch& batch,
                                                    UnitSource& source) = 0;
};

std::unique_ptr<MicrobatchModel> MakeTransformerModel(std::unique_ptr<Transformer> transformer);

}  // namespace shoal::worker
