#include "worker/job/build_batch.h"

#include "core/base/status.h"

namespace shoal::worker {

absl::StatusOr<PackedBatch> BuildBatch(const formats::TokenFile& file,
                                       const proto::MicrobatchWork& work) {
  PackedBatch batch;
  for (const int64_t sample : work.samples()) {
    SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample views, file.Sample(sample));
    batch.Append(views.tokens, views.labels);
  }
  return batch;
}

}  // namespace shoal::worker
