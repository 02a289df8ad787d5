#include "cli/data/data_source.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "cli/run/preflight.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/jsonl.h"
#include "worker/model/transformer.h"

namespace shoal::cli {

namespace fs = std::filesystem;

namespace {

// By plan::OversizePolicy.
constexpr std::array<std::string_view, 3> kOversizeNames = {"error", "skip", "truncate"};

absl::StatusOr<plan::OversizePolicy> ParseOversize(const std::string& name) {
  const auto found = std::ranges::find(kOversizeNames, name);
  if (found == kOversizeNames.end()) {
    return InvalidArgument("--oversize {}: choose error, skip or truncate", name);
  }
  return static_cast<plan::OversizePolicy>(found - kOversizeNames.begin());
}

// Of an option that may be repeated.
absl::StatusOr<std::map<std::string, std::string>> ParseEntries(
    const std::vector<std::string>& entries, std::string_view option, std::string_view expected) {
  std::map<std::string, std::string> parsed;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == entry.size()) {
      return InvalidArgument("{} {}: expected {}", option, entry, expected);
    }
    parsed[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return parsed;
}

}  // namespace

absl::StatusOr<plan::Template> ParseTemplate(const std::string& name) {
  const auto found = std::ranges::find(plan::kTemplateNames, name);
  if (found == plan::kTemplateNames.end()) {
    return InvalidArgument("template {}: choose auto, plain, chatml or llama3", name);
  }
  return static_cast<plan::Template>(found - plan::kTemplateNames.begin());
}

absl::StatusOr<worker::TemplateChoice> SettleTemplate(const TemplateWish& wish,
                                                      const std::string& model_folder,
                                                      const worker::Tokenizer* tokenizer) {
  worker::TemplateChoice choice = wish.kind;
  if (wish.kind == plan::Template::kAuto) {
    SHOAL_ASSIGN_OR_RETURN(choice, worker::ChooseTemplate(model_folder, tokenizer));
  }
  choice.arguments = wish.arguments;
  choice.day = wish.day;
  return choice;
}

absl::StatusOr<DataEncoder> OpenDataEncoder(const std::string& model_folder,
                                            const TemplateWish& wish) {
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, formats::ReadModelSpec(model_folder));
  SHOAL_ASSIGN_OR_RETURN(const formats::SpecialTokens special,
                         formats::ReadSpecialTokens(model_folder));
  DataEncoder result;
  std::error_code error;
  if (fs::exists(fs::path(model_folder) / "tokenizer.json", error)) {
    SHOAL_ASSIGN_OR_RETURN(result.tokenizer, worker::Tokenizer::Load(model_folder));
  }
  SHOAL_ASSIGN_OR_RETURN(const worker::TemplateChoice choice,
                         SettleTemplate(wish, model_folder, result.tokenizer.get()));
  auto encoder =
      worker::SampleEncoder::Create(result.tokenizer.get(), choice, special, spec.vocabulary);
  SHOAL_RETURN_IF_ERROR(Annotate(encoder.status(), model_folder));
  result.encoder = std::make_unique<worker::SampleEncoder>(*std::move(encoder));
  return result;
}

absl::StatusOr<std::map<std::string, std::string>> ParseFields(
    const std::vector<std::string>& entries) {
  return ParseEntries(entries, "--field", "OURS=THEIRS, for example prompt=question");
}

void AddTemplateArguments(CLI::App& command, std::vector<std::string>& entries) {
  command
      .add_option("--template-argument", entries,
                  "What the folder's own template reads beside the messages: "
                  "enable_thinking=false (may be repeated)")
      ->allow_extra_args(false);
}

absl::StatusOr<std::map<std::string, std::string>> ParseTemplateArguments(
    const std::vector<std::string>& entries) {
  return ParseEntries(entries, "--template-argument",
                      "NAME=VALUE, for example enable_thinking=false");
}

void AddSourceOptions(CLI::App& command, DataSourceOptions& source) {
  command.add_option("--model", source.model, "Folder with the tokenizer and config.json");
  command
      .add_option("--template", source.chat_template,
                  "plain, chatml, llama3, or auto: the folder's own, or by the tokenizer's tokens")
      ->check(CLI::IsMember({"auto", "plain", "chatml", "llama3"}))
      ->capture_default_str();
  AddTemplateArguments(command, source.template_arguments);
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

void AddJobOption(CLI::App& command, DataSourceOptions& source) {
  command.add_option("--job", source.job,
                     "Job file that says what the command line leaves open: model, template and "
                     "its arguments, fields, lengths");
}

absl::StatusOr<std::optional<plan::Job>> TakeJob(const CLI::App& command,
                                                 DataSourceOptions& source) {
  std::optional<plan::Job> job;
  if (!source.job.empty()) {
    SHOAL_ASSIGN_OR_RETURN(job,
                           ReadJob(source.job, {}, {.cpu_has_bf16 = worker::CpuHasFastBf16()}));
    const plan::DataOptions& data = job->data;
    const auto entries = [](const std::map<std::string, std::string>& of) {
      std::vector<std::string> list;
      for (const auto& [name, value] : of) {
        list.push_back(fmt::format("{}={}", name, value));
      }
      return list;
    };
    TakeUnlessGiven(command, "--model", source.model, job->model);
    TakeUnlessGiven(command, "--template", source.chat_template,
                    std::string(plan::Name(data.chat_template)));
    TakeUnlessGiven(command, "--template-argument", source.template_arguments,
                    entries(data.template_arguments));
    TakeUnlessGiven(command, "--field", source.fields, entries(data.fields));
    TakeUnlessGiven(command, "--max-sequence-tokens", source.max_sequence_tokens,
                    data.max_sequence_tokens);
    TakeUnlessGiven(command, "--oversize", source.oversize,
                    std::string(kOversizeNames[static_cast<size_t>(data.oversize)]));
  }
  if (source.model.empty()) {
    return InvalidArgument("--model is required, or --job");
  }
  return job;
}

absl::StatusOr<OpenedSource> OpenSource(const DataSourceOptions& source) {
  OpenedSource opened;
  TemplateWish wish;
  SHOAL_ASSIGN_OR_RETURN(wish.kind, ParseTemplate(source.chat_template));
  SHOAL_ASSIGN_OR_RETURN(wish.arguments, ParseTemplateArguments(source.template_arguments));
  SHOAL_ASSIGN_OR_RETURN(opened.encoder, OpenDataEncoder(source.model, wish));
  SHOAL_ASSIGN_OR_RETURN(opened.prepare.fields, ParseFields(source.fields));
  SHOAL_RETURN_IF_ERROR(worker::CheckFields(opened.prepare.fields));
  SHOAL_ASSIGN_OR_RETURN(opened.prepare.oversize, ParseOversize(source.oversize));
  opened.prepare.max_sequence_tokens = source.max_sequence_tokens;
  return opened;
}

std::string TemplateWarning(plan::Template kind, const std::string& model_folder,
                            const worker::Tokenizer* tokenizer) {
  const auto fitting = worker::ChooseTemplate(model_folder, tokenizer);
  if (!fitting.ok() || fitting->kind == plan::Template::kPlain || fitting->kind == kind) {
    return "";
  }
  return fmt::format(
      "the template is {}, and the model is made for {}; say --template {} if it was trained so",
      plan::Name(kind),
      fitting->own.text.empty() ? plan::Name(fitting->kind) : std::string_view(fitting->own.name),
      plan::Name(fitting->kind));
}

}  // namespace shoal::cli
