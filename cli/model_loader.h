// A model folder loaded whole into this process, for the commands that compute without a running
// job.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/model/huggingface/hf_model.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/transformer.h"

namespace shoal::cli {

struct LoadedModel {
  plan::ModelSpec spec;
  formats::SpecialTokens special;
  std::unique_ptr<worker::Tokenizer> tokenizer;
  std::unique_ptr<worker::MemoryUnitSource> weights;
  std::unique_ptr<worker::Transformer> transformer;
};

// `adapter`: a folder of PEFT's, of that model; empty: none. `compute`: "auto" (bf16 where the CPU
// has it), "fp32" or "bf16".
absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, const std::string& adapter,
                                      const std::string& compute);

// The same choice that a job's `compute` makes.
absl::StatusOr<DType> ComputeDType(const std::string& compute);

}  // namespace shoal::cli
