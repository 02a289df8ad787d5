#include "core/job/job_model.h"

#include <cmath>
#include <utility>

#include "core/base/status.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/peft_adapter.h"

namespace shoal::plan {

const char* KeyOfAdapters(const Job& job) {
  return job.lora.from.empty() ? "lora.targets" : "lora.from";
}

absl::StatusOr<ModelSpec> ReadJobModel(const Job& job) {
  SHOAL_ASSIGN_OR_RETURN(ModelSpec spec, formats::ReadModelSpec(job.model));
  auto adapted = WithJobAdapters(std::move(spec), job);
  SHOAL_RETURN_IF_ERROR(Annotate(adapted.status(), KeyOfAdapters(job)));
  return adapted;
}

absl::StatusOr<ModelSpec> WithJobAdapters(ModelSpec spec, const Job& job) {
  const LoraOptions& lora = job.lora;
  if (!lora.enabled()) {
    return spec;
  }
  spec.quantize = lora.quantize;
  spec.from_files = job.service.frozen == Frozen::kFiles;
  if (!lora.from.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const auto adapter, formats::PeftAdapter::Open(lora.from, spec));
    return adapter->spec();
  }
  const auto rank = static_cast<double>(lora.rank);
  return WithAdapters(std::move(spec), lora.targets, lora.rank,
                      lora.alpha / (lora.rslora ? std::sqrt(rank) : rank));
}

absl::StatusOr<UnitReader> InitialAdapters(const ModelSpec& spec, const Job& job) {
  if (job.lora.from.empty()) {
    return formats::InitialWeights(spec, job.train.seed);
  }
  ModelSpec base = spec;
  base.adapters.clear();
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<formats::PeftAdapter> adapter,
                         formats::PeftAdapter::Open(job.lora.from, base));
  if (adapter->spec() != spec) {
    return InvalidArgument("lora.from: {} has other adapters than it had", job.lora.from);
  }
  return UnitReader([adapter](int unit, int64_t offset, std::span<float> out) {
    return adapter->ReadUnit(unit, offset, out);
  });
}

}  // namespace shoal::plan
