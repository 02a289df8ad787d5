// Adapters as PEFT keeps them: a folder with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"

namespace shoal::formats {

class PeftAdapter {
 public:
  // `base`: the model that they are of. What they cannot do here is refused by its key, and so are
  // tensors of modules that the model has not.
  static absl::StatusOr<std::unique_ptr<PeftAdapter>> Open(const std::string& folder,
                                                           const plan::ModelSpec& base);
  ~PeftAdapter();

  // The base with these adapters.
  const plan::ModelSpec& spec() const;
  // Reads elements of a unit of adapters, converted to float. Thread-safe.
  absl::Status ReadUnit(int unit, int64_t offset, std::span<float> out) const;

 private:
  struct State;
  explicit PeftAdapter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Writes the adapters of the model, with the files of a tokenizer.
struct PeftWriteOptions {
  DType dtype = DType::kF32;
  std::string base_model;        // what adapter_config.json names as their model
  double dropout = 0;            // with which they were trained
  bool rank_stabilized = false;  // says their scales by alpha / sqrt(rank), not by alpha / rank
  std::string tokenizer_folder;  // empty: none
};
absl::Status WritePeftAdapter(const std::string& folder, const plan::ModelSpec& spec,
                              const plan::UnitReader& read, const PeftWriteOptions& options);

}  // namespace shoal::formats
