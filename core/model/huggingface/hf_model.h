// Models in Hugging Face form: a folder with config.json and model.safetensors, or several files
// and model.safetensors.index.json. Names and shapes are checked against the ModelSpec; anything
// unknown, missing or of the wrong shape is refused by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"

namespace shoal::formats {

// Reads config.json into a validated ModelSpec. Unknown architectures, activations and rope types
// are refused by name.
absl::StatusOr<plan::ModelSpec> ReadModelSpec(const std::string& folder);
absl::StatusOr<plan::ModelSpec> ParseModelSpec(const std::string& json,
                                               const std::string& file_name);
// Begin/end-of-sequence ids, from config.json, else generation_config.json, else the tokens that
// tokenizer_config.json names.
struct SpecialTokens {
  int64_t bos = -1;  // -1: none
  int64_t eos = -1;
  std::vector<int64_t> stops;  // every id that ends generation, including eos
};
// The inverse of ParseModelSpec; `torch_dtype` must be kF32 or kBF16.
std::string ModelSpecToJson(const plan::ModelSpec& spec, DType torch_dtype,
                            const SpecialTokens& special);
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& folder);

// An opened folder of weights.
class HfModel {
 public:
  static absl::StatusOr<std::unique_ptr<HfModel>> Open(const std::string& folder);
  ~HfModel();

  const plan::ModelSpec& spec() const;
  const std::string& folder() const;
  // Of the files with its weights, within the folder.
  std::vector<std::string> files() const;

  // Reads elements [offset, offset + out.size()) of unit `unit`'s flat vector (plan::BuildUnits),
  // converted to float; padding reads as zero. Any range, so that a server reads only its
  // partitions. Thread-safe.
  absl::Status ReadUnit(int unit, int64_t offset, std::span<float> out) const;

 private:
  struct State;
  explicit HfModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Writes config.json and model.safetensors (several files with an index above max_file_bytes) in
// the given element type, reading the weights through `read` piece by piece in bounded memory.
// Copies tokenizer files (tokenizer.json, tokenizer_config.json, special_tokens_map.json,
// generation_config.json, chat templates) from `tokenizer_folder` if present, and config.json,
// but for the element type, from `config_folder`, if that describes this model: other programs may
// need keys that mean nothing here.
struct HfWriteOptions {
  DType dtype = DType::kF32;
  std::string tokenizer_folder;  // empty: none
  std::string config_folder;     // of the model that it was; empty: none
  SpecialTokens special;
  int64_t max_file_bytes = int64_t{5} << 30;
};
absl::Status WriteHfModel(const std::string& folder, const plan::ModelSpec& spec,
                          const plan::UnitReader& read, const HfWriteOptions& options);

// Writes the tensors of these units as one safetensors file.
absl::Status WriteTensors(const std::string& path, std::span<const plan::UnitSpec> units,
                          const plan::UnitReader& read, DType dtype);

// Copies those files of a tokenizer (and generation_config.json) that `from` has.
absl::Status CopyTokenizerFiles(const std::string& from, const std::string& to);

// Supplies random weights: normal with standard deviation 0.02 (matrices that write to the residual
// stream divided by sqrt(2 layers)), zeros for biases, norms that multiply by one; of adapters A
// uniform within 1 / sqrt(inputs), B zero. An element depends only on seed, tensor name and
// position.
plan::UnitReader InitialWeights(const plan::ModelSpec& spec, uint64_t seed);
absl::Status InitHfModel(const std::string& folder, const plan::ModelSpec& spec, uint64_t seed,
                         const HfWriteOptions& options);

}  // namespace shoal::formats
