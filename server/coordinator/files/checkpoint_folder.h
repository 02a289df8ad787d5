// The checkpoint folder of a job, over server/checkpoint.
#pragma once

#include <memory>
#include <vector>

#include "core/job/job.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/model_files.h"
#include "core/model/model_spec.h"
#include "server/coordinator/job/checkpoint_files.h"

namespace shoal::server {

// `spec`: of the job's model; `files`: the model's, where checkpoints hold the adapters alone.
std::unique_ptr<CheckpointFiles> MakeCheckpointFolder(plan::Job job, plan::ModelSpec spec,
                                                      formats::SpecialTokens special,
                                                      std::vector<formats::ModelFile> files);

}  // namespace shoal::server
