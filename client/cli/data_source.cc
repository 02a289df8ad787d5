#include "client/cli/data_source.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "common/status.h"

namespace shoal::cli {

namespace fs = std::filesystem;

absl::StatusOr<plan::Template> TemplateFor(const std::string& name,
                                           const worker::Tokenizer* tokenizer) {
  const auto has = [tokenizer](std::string_view token) {
    return tokenizer != nullptr && tokenizer->TokenToId(token).has_value();
  };
  if (name == "chatml" || (name == "auto" && has("<|im_start|>"))) {
    return plan::Template::kChatML;
  }
  if (name == "llama3" || (name == "auto" && has("<|start_header_id|>"))) {
    return plan::Template::kLlama3;
  }
  if (name == "plain" || name == "auto") {
    return plan::Template::kPlain;
  }
  return InvalidArgument("template {}: choose auto, plain, chatml or llama3", name);
}

absl::StatusOr<DataEncoder> OpenDataEncoder(const std::string& model_folder, plan::Template kind) {
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, formats::ReadModelSpec(model_folder));
  SHOAL_ASSIGN_OR_RETURN(const formats::SpecialTokens special,
                         formats::ReadSpecialTokens(model_folder));
  DataEncoder result;
  std::error_code error;
  if (fs::exists(fs::path(model_folder) / "tokenizer.json", error)) {
    SHOAL_ASSIGN_OR_RETURN(result.tokenizer, worker::Tokenizer::Load(model_folder));
  }
  SHOAL_ASSIGN_OR_RETURN(
      worker::SampleEncoder encoder,
      worker::SampleEncoder::Create(result.tokenizer.get(), kind, special, spec.vocabulary));
  result.encoder = std::make_unique<worker::SampleEncoder>(std::move(encoder));
  return result;
}

absl::StatusOr<std::unique_ptr<TemporaryFolder>> TemporaryFolder::Create() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "shoal-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) {
    return ErrnoToStatus(errno, fmt::format("making a temporary folder {}", name));
  }
  return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(std::move(name)));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace shoal::cli
