// JSONL and a model folder, opened to be tokenised: shared by `shoal data`, `shoal train` and
// `shoal eval`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/prepare.h"
#include "core/data/sample_encoder.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/job/job.h"
#include "core/model/huggingface/hf_model.h"

namespace CLI {
class App;
}

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

// "prompt=question" entries as a map; InvalidArgument names one without '='.
absl::StatusOr<std::map<std::string, std::string>> ParseFields(
    const std::vector<std::string>& entries);

// How JSONL becomes tokens: the same choices as a job's data section.
struct DataSourceOptions {
  std::string input;
  std::string model;  // folder with the tokenizer and config.json
  std::string chat_template = "plain";
  std::vector<std::string> fields;  // OURS=THEIRS
  int64_t max_sequence_tokens = 2048;
  std::string oversize = "error";
};

// All options but the file, told to CLI11.
void AddSourceOptions(CLI::App& command, DataSourceOptions& source);

struct OpenedSource {
  DataEncoder encoder;
  worker::PrepareOptions prepare;
};
absl::StatusOr<OpenedSource> OpenSource(const DataSourceOptions& source);

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
