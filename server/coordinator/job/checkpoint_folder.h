// CheckpointFiles over server/checkpoint.
#pragma once

#include <string>

#include "core/job/job.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/model_spec.h"
#include "server/coordinator/job/checkpoint_files.h"

namespace shoal::server {

class CheckpointFolder final : public CheckpointFiles {
 public:
  CheckpointFolder(plan::Job job, plan::ModelSpec spec, formats::SpecialTokens special);

  absl::StatusOr<std::optional<CompleteCheckpoint>> Newest() override;
  absl::StatusOr<std::string> Create(int64_t step) override;
  absl::Status Discard(int64_t step) override;
  absl::Status Finish(const CompleteCheckpoint& checkpoint,
                      const std::vector<proto::CheckpointShard>& shards) override;

 private:
  const plan::Job job_;
  const plan::ModelSpec spec_;
  const formats::SpecialTokens special_;
};

}  // namespace shoal::server
