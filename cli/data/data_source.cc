#include "cli/data/data_source.h"

#include <filesystem>

#include "CLI/CLI.hpp"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/jsonl.h"

namespace shoal::cli {

namespace fs = std::filesystem;

namespace {

absl::StatusOr<plan::OversizePolicy> ParseOversize(const std::string& name) {
  if (name == "error") {
    return plan::OversizePolicy::kError;
  }
  if (name == "skip") {
    return plan::OversizePolicy::kSkip;
  }
  if (name == "truncate") {
    return plan::OversizePolicy::kTruncate;
  }
  return InvalidArgument("--oversize {}: choose error, skip or truncate", name);
}

}  // namespace

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
  auto encoder =
      worker::SampleEncoder::Create(result.tokenizer.get(), kind, special, spec.vocabulary);
  SHOAL_RETURN_IF_ERROR(Annotate(encoder.status(), model_folder));
  result.encoder = std::make_unique<worker::SampleEncoder>(*std::move(encoder));
  return result;
}

absl::StatusOr<std::map<std::string, std::string>> ParseFields(
    const std::vector<std::string>& entries) {
  std::map<std::string, std::string> fields;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == entry.size()) {
      return InvalidArgument("--field {}: expected OURS=THEIRS, for example prompt=question",
                             entry);
    }
    fields[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return fields;
}

void AddSourceOptions(CLI::App& command, DataSourceOptions& source) {
  command.add_option("--model", source.model, "Folder with the tokenizer and config.json")
      ->required();
  command
      .add_option("--template", source.chat_template,
                  "plain, chatml, llama3, or auto by the tokenizer's tokens")
      ->check(CLI::IsMember({"auto", "plain", "chatml", "llama3"}))
      ->capture_default_str();
  command
      .add_option("--field", source.fields,
                  "The file's name of a field: prompt=question (may be repeated)")
      ->allow_extra_args(false);
  command
      .add_option("--max-sequence-tokens", source.max_sequence_tokens,
                  "Longer samples are oversize")
      ->check(AtLeast(1))
      ->capture_default_str();
  command.add_option("--oversize", source.oversize, "error, skip or truncate")
      ->check(CLI::IsMember({"error", "skip", "truncate"}))
      ->capture_default_str();
}

absl::StatusOr<OpenedSource> OpenSource(const DataSourceOptions& source) {
  OpenedSource opened;
  std::unique_ptr<worker::Tokenizer> tokenizer;
  std::error_code error;
  if (source.chat_template == "auto" && fs::exists(source.model + "/tokenizer.json", error)) {
    SHOAL_ASSIGN_OR_RETURN(tokenizer, worker::Tokenizer::Load(source.model));
  }
  SHOAL_ASSIGN_OR_RETURN(const plan::Template kind,
                         TemplateFor(source.chat_template, tokenizer.get()));
  SHOAL_ASSIGN_OR_RETURN(opened.encoder, OpenDataEncoder(source.model, kind));
  SHOAL_ASSIGN_OR_RETURN(opened.prepare.fields, ParseFields(source.fields));
  SHOAL_RETURN_IF_ERROR(worker::CheckFields(opened.prepare.fields));
  SHOAL_ASSIGN_OR_RETURN(opened.prepare.oversize, ParseOversize(source.oversize));
  opened.prepare.max_sequence_tokens = source.max_sequence_tokens;
  return opened;
}

std::string TemplateWarning(plan::Template kind, const worker::Tokenizer* tokenizer) {
  const auto fitting = TemplateFor("auto", tokenizer);
  if (!fitting.ok() || *fitting == plan::Template::kPlain || *fitting == kind) {
    return "";
  }
  return fmt::format(
      "the template is {}, and the model's tokenizer has the tokens of {}; say --template {} if "
      "the model was trained with it",
      plan::Name(kind), plan::Name(*fitting), plan::Name(*fitting));
}

}  // namespace shoal::cli
