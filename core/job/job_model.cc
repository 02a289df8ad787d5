#include "core/job/job_model.h"

#include <cmath>
#include <utility>

#include "core/base/status.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/huggingface/peft_adapter.h"

namespace shoal::plan {
namespace {

double Scale(const LoraOptions& lora, int64_t rank, double alpha) {
  const auto r = static_cast<double>(rank);
  return alpha / (lora.rslora ? std::sqrt(r) : r);
}

std::vector<AdapterPattern> PatternsOf(const LoraOptions& lora) {
  std::vector<AdapterPattern> patterns;
  for (const LoraPattern& pattern : lora.patterns) {
    const int64_t rank = pattern.rank.value_or(lora.rank);
    patterns.push_back(
        {pattern.match, rank, Scale(lora, rank, pattern.alpha.value_or(lora.alpha))});
  }
  return patterns;
}

}  // namespace

absl::StatusOr<ModelSpec> ReadJobModel(const Job& job) {
  SHOAL_ASSIGN_OR_RETURN(ModelSpec spec, formats::ReadModelSpec(job.model));
  return WithJobAdapters(std::move(spec), job);
}

absl::StatusOr<ModelSpec> WithJobAdapters(ModelSpec spec, const Job& job) {
  const LoraOptions& lora = job.lora;
  if (!lora.enabled()) {
    return spec;
  }
  spec.quantize = lora.quantize;
  spec.from_files = job.service.frozen == Frozen::kFiles;
  if (!lora.from.empty()) {
    const auto adapter = formats::PeftAdapter::Open(lora.from, spec);
    SHOAL_RETURN_IF_ERROR(Annotate(adapter.status(), "lora.from"));
    return (*adapter)->spec();
  }
  const auto adapted =
      WithAdapters(std::move(spec), lora.targets, lora.rank, Scale(lora, lora.rank, lora.alpha));
  SHOAL_RETURN_IF_ERROR(Annotate(adapted.status(), "lora.targets"));
  auto with_patterns = WithPatterns(*adapted, PatternsOf(lora));
  SHOAL_RETURN_IF_ERROR(Annotate(with_patterns.status(), "lora.patterns"));
  return with_patterns;
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
