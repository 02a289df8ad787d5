#include "worker/model/batch/batches.h"

#include "core/base/status.h"

namespace shoal::worker {

absl::StatusOr<PackedBatch> BuildBatch(const formats::TokenFile& file,
                                       const plan::Microbatch& microbatch) {
  int64_t tokens = 0;
  int64_t targets = 0;
  for (const int64_t sample : microbatch.samples) {
    if (sample < 0 || sample >= file.samples()) {
      return FailedPrecondition(
          "the plan asks for sample {}, and the token file here has {}: not the coordinator's file",
          sample, file.samples());
    }
    tokens += file.tokens(sample);
    targets += file.targets(sample);
  }
  if (tokens != microbatch.tokens || targets != microbatch.targets) {
    return FailedPrecondition(
        "a microbatch was planned with {} tokens and {} targets, and the token file here gives {} "
        "and {}: not the "
        "coordinator's file",
        microbatch.tokens, microbatch.targets, tokens, targets);
  }
  PackedBatch batch;
  batch.tokens.reserve(static_cast<size_t>(tokens));
  batch.labels.reserve(static_cast<size_t>(tokens));
  for (const int64_t sample : microbatch.samples) {
    SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample encoded, file.Sample(sample));
    batch.Append(encoded);
  }
  return batch;
}

}  // namespace shoal::worker
