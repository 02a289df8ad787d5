#include "worker/model/microbatch_model.h"

#include <functional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "core/base/status.h"
#include "core/plan/schedule/stage_units.h"
#include "worker/model/access/unit_walk.h"

namespace shoal::worker {
namespace {

class TransformerModel final : public MicrobatchModel {
 public:
  explicit TransformerModel(std::unique_ptr<Transformer> transformer)
      : transformer_(std::move(transformer)) {}

  const plan::ModelSpec& spec() const override { return transformer_->spec(); }
  const std::vector<plan::UnitSpec>& units() const override { return transformer_->units(); }

  absl::StatusOr<MicrobatchResult> Run(const PackedBatch& batch, double loss_scale,
                                       UnitSource& source, GradientSink& sink) override {
    if (batch.token_count() == 0) {
      SHOAL_RETURN_IF_ERROR(WalkUnits(spec(), source, sink, nullptr));
      return MicrobatchResult();
    }
    return Compared(batch, source, [&](const PackedBatch& compared) {
      return RunMicrobatch(*transformer_, compared, loss_scale, source, sink);
    });
  }

  absl::StatusOr<MicrobatchResult> Evaluate(const PackedBatch& batch, UnitSource& source) override {
    if (batch.token_count() == 0) {
      for (const int unit : plan::EvaluationUses(spec(), plan::AllUnits(spec()))) {
        SHOAL_RETURN_IF_ERROR(source.Get(unit).status());
        source.Release(unit);
      }
      return MicrobatchResult();
    }
    return Compared(batch, source, [&](const PackedBatch& compared) {
      return EvaluateLoss(*transformer_, compared, source);
    });
  }

 private:
  using Result = absl::StatusOr<MicrobatchResult>;

  // Runs a batch with what its pairs are compared with, which is made before where it is of the
  // model without adapters.
  Result Compared(const PackedBatch& batch, UnitSource& source,
                  const std::function<Result(const PackedBatch&)>& run) {
    if (!batch.preference.has_value() ||
        batch.preference->reference != plan::Reference::kAdapterOff) {
      return run(batch);
    }
    PackedBatch compared = batch;
    {
      transformer_->UseAdapters(false);
      const absl::Cleanup again = [this] { transformer_->UseAdapters(true); };
      SHOAL_ASSIGN_OR_RETURN(MicrobatchResult alone, EvaluateLoss(*transformer_, batch, source));
      compared.references = std::move(alone.log_probabilities);
    }
    SHOAL_ASSIGN_OR_RETURN(MicrobatchResult result, run(compared));
    result.references = std::move(compared.references);
    return result;
  }

  const std::unique_ptr<Transformer> transformer_;
};

}  // namespace

std::unique_ptr<MicrobatchModel> MakeTransformerModel(std::unique_ptr<Transformer> transformer) {
  return std::make_unique<TransformerModel>(std::move(transformer));
}

}  // namespace shoal::worker
