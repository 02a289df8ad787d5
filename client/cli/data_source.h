// JSONL and a model folder, opened to be tokenised: shared by `shoal data`, `shoal train` and
// `shoal eval`.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "formats/hf_model.h"
#include "plan/job.h"
#include "worker/data/prepare.h"
#include "worker/data/sample_encoder.h"
#include "worker/data/tokenizer.h"

namespace shoal::cli {

struct DataEncoder {
  std::unique_ptr<worker::Tokenizer> tokenizer;  // null where the model folder has none
  std::unique_ptr<worker::SampleEncoder> encoder;
};

// Reads tokenizer and vocabulary from the model folder. A folder without tokenizer.json serves for
// data that comes as input_ids alone.
absl::StatusOr<DataEncoder> OpenDataEncoder(const std::string& model_folder, plan::Template kind);

// "plain", "chatml" or "llama3"; "auto" takes the one whose special tokens the tokenizer (may be
// null) has, else plain.
absl::StatusOr<plan::Template> TemplateFor(const std::string& name,
                                           const worker::Tokenizer* tokenizer);

// A folder under the system's temporary one, removed with all it holds when this object goes.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Create();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace shoal::cli
