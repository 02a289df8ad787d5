#include "cli/model_loader.h"

#include "core/base/status.h"
#include "core/model/huggingface/peft_adapter.h"

namespace shoal::cli {

absl::StatusOr<DType> ComputeDType(const std::string& compute) {
  if (compute == "auto") {
    return worker::CpuHasFastBf16() ? DType::kBF16 : DType::kF32;
  }
  SHOAL_ASSIGN_OR_RETURN(const DType dtype, ParseDType(compute));
  if (dtype == DType::kF16) {
    return InvalidArgument("compute {}: choose auto, fp32 or bf16", compute);
  }
  return dtype;
}

absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, const std::string& adapter,
                                      const std::string& compute) {
  SHOAL_ASSIGN_OR_RETURN(const DType dtype, ComputeDType(compute));
  SHOAL_ASSIGN_OR_RETURN(const auto model, formats::HfModel::Open(folder));
  LoadedModel loaded;
  loaded.spec = model->spec();
  std::unique_ptr<formats::PeftAdapter> adapted;
  if (!adapter.empty()) {
    SHOAL_ASSIGN_OR_RETURN(adapted, formats::PeftAdapter::Open(adapter, model->spec()));
    loaded.spec = adapted->spec();
  }
  SHOAL_ASSIGN_OR_RETURN(loaded.special, formats::ReadSpecialTokens(folder));
  SHOAL_ASSIGN_OR_RETURN(loaded.tokenizer, worker::Tokenizer::Load(folder));
  SHOAL_ASSIGN_OR_RETURN(loaded.transformer,
                         worker::Transformer::Create(loaded.spec, {.compute = dtype}));
  SHOAL_ASSIGN_OR_RETURN(
      worker::MemoryUnitSource weights,
      worker::MemoryUnitSource::Load(
          loaded.transformer->units(), dtype, [&](int unit, int64_t offset, std::span<float> out) {
            return loaded.transformer->units()[static_cast<size_t>(unit)].kind ==
                           plan::UnitKind::kAdapter
                       ? adapted->ReadUnit(unit, offset, out)
                       : model->ReadUnit(unit, offset, out);
          }));
  loaded.weights = std::make_unique<worker::MemoryUnitSource>(std::move(weights));
  return loaded;
}

}  // namespace shoal::cli
