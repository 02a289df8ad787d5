#include "worker/model/forward.h"

#include "core/base/status.h"

namespace shoal::worker {

absl::Status ForwardUnits(Transformer& model, const MicrobatchInput& microbatch, UnitSource& source,
                          plan::UnitRange units,
                          const std::function<BlockActivations(int unit)>& activations,
                          Matrix output) {
  const plan::ModelSpec& spec = model.spec();
  for (int unit = units.first; unit < units.end(); ++unit) {
    const Matrix out = unit + 1 < units.end() ? activations(unit + 1).input : output;
    if (unit == 0) {
      SHOAL_ASSIGN_OR_RETURN(const HeldUnit weights, HeldUnit::Get(model, source, unit));
      model.ops().EmbeddingForward(microbatch.token_ids(), microbatch.tokens(),
                                   weights.matrix(0, spec.vocabulary, spec.hidden),
                                   model.embedding_scale(), out);
    } else {
      SHOAL_ASSIGN_OR_RETURN(const HeldBlock held, HeldBlock::Get(model, source, unit));
      BlockForward(model.ops(), held.weights(model, microbatch.dropout(unit)),
                   microbatch.sequences(model.rotary(), unit), activations(unit), out);
    }
  }
  return model.ops().Check();
}

}  // namespace shoal::worker
