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

// A flag whose values are those of an enum of plan::, by their numbers.
template <typename Enum, size_t kCount>
struct Choice {
  const char* flag;
  std::array<const char*, kCount> names;

  absl::StatusOr<Enum> Parse(const std::string& name) const {
    const auto found = std::ranges::find(names, name);
    return found == names.end()
               ? InvalidArgument("{} {}: choose one of {}", flag, name, fmt::join(names, ", "))
               : absl::StatusOr<Enum>(static_cast<Enum>(found - names.begin()));
  }
  void Add(CLI::App& command, std::string& value, const std::string& help) const {
    command.add_option(flag, value, fmt::format("{}{}", help, fmt::join(names, ", ")))
        ->check(CLI::IsMember(std::vector<std::string>(names.begin(), names.end())))
        ->capture_default_str();
  }
  void Take(const CLI::App& command, std::string& value, Enum of_job) const {
    TakeUnlessGiven(command, flag, value, std::string(names[static_cast<size_t>(of_job)]));
  }
};
constexpr Choice<plan::OversizePolicy, 3> kOversize = {"--oversize", {"error", "skip", "truncate"}};
constexpr Choice<plan::Objective, 3> kObjective = {"--objective", {"sft", "pretrain", "dpo"}};
constexpr Choice<plan::TrainOn, 4> kTrainOn = {"--train-on", {"all", "last", "each", "answer"}};
constexpr Choice<plan::Documents, 2> kDocuments = {"--documents", {"pack", "concatenate"}};

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

absl::StatusOr<worker::TemplateChoice> SettleTemplate(const TemplateWish& wish,
                                                      const std::string& model_folder,
                                                      const worker::Tokenizer* tokenizer) {
  SHOAL_ASSIGN_OR_RETURN(worker::TemplateChoice choice,
                         worker::ChooseTemplate(wish.name, model_folder, tokenizer));
  choice.arguments = wish.arguments;
  choice.day = wish.day;
  return choice;
}

absl::StatusOr<DataEncoder> OpenDataEncoder(const std::string& model_folder,
                                            const TemplateWish& wish,
                                            const worker::Learning& learning) {
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, formats::ReadModelSpec(model_folder));
  SHOAL_ASSIGN_OR_RETURN(const formats::SpecialTokens special,
                         formats::ReadSpecialTokens(model_folder));
  DataEncoder result;
  std::error_code error;
  if (fs::exists(fs::path(model_folder) / "tokenizer.json", error)) {
    SHOAL_ASSIGN_OR_RETURN(result.tokenizer, worker::Tokenizer::Load(model_folder));
  }
  worker::TemplateChoice choice = plan::Template::kPlain;  // documents have none
  if (learning.objective != plan::Objective::kPretrain) {
    SHOAL_ASSIGN_OR_RETURN(choice, SettleTemplate(wish, model_folder, result.tokenizer.get()));
  }
  auto encoder = worker::SampleEncoder::Create(result.tokenizer.get(), choice, special,
                                               spec.vocabulary, learning);
  SHOAL_RETURN_IF_ERROR(Annotate(encoder.status(), model_folder));
  result.encoder = std::make_unique<worker::SampleEncoder>(*std::move(encoder));
  return result;
}

absl::StatusOr<DataEncoder> OpenDataEncoder(const plan::Job& job) {
  const plan::DataOptions& data = job.data;
  return OpenDataEncoder(job.model, {data.chat_template, data.template_arguments, data.date},
                         {job.train.objective, data.train_on});
}

absl::StatusOr<std::map<std::string, std::string>> ParseFields(
    const std::vector<std::string>& entries) {
  return ParseEntries(entries, "--field", "OURS=THEIRS, for example prompt=question");
}

void AddTemplateOptions(CLI::App& command, const std::string& help, std::string& name,
                        std::vector<std::string>& arguments) {
  command
      .add_option("--template", name,
                  help +
                      "plain, chatml, llama3, the path of a .jinja file, or auto: the folder's "
                      "own, or by the tokenizer's tokens")
      ->check(
          [](const std::string& text) { return std::string(Message(plan::CheckTemplate(text))); })
      ->capture_default_str();
  command
      .add_option("--template-argument", arguments,
                  "What a template of the folder's or a file's template reads beside the messages: "
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
  AddTemplateOptions(command, "", source.chat_template, source.template_arguments);
  command
      .add_option("--field", source.fields,
                  "The file's name of a field: prompt=question (may be repeated)")
      ->allow_extra_args(false);
  command
      .add_option("--max-sequence-tokens", source.max_sequence_tokens,
                  "Longer samples are oversize")
      ->check(AtLeast(1))
      ->capture_default_str();
  kOversize.Add(command, source.oversize, "");
  kObjective.Add(command, source.objective,
                 "What is learnt, conversations, documents or pairs of replies: ");
  kTrainOn.Add(command, source.train_on, "Which messages of the assistant are learnt: ");
  kDocuments.Add(command, source.documents, "How documents are cut: ");
  command.add_option("--date", source.date,
                     "The day that a template is told, as 2026-11-27 (default: today)");
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
    TakeUnlessGiven(command, "--template", source.chat_template, data.chat_template);
    TakeUnlessGiven(command, "--template-argument", source.template_arguments,
                    entries(data.template_arguments));
    TakeUnlessGiven(command, "--field", source.fields, entries(data.fields));
    TakeUnlessGiven(command, "--max-sequence-tokens", source.max_sequence_tokens,
                    data.max_sequence_tokens);
    TakeUnlessGiven(command, "--date", source.date, data.date);
    kOversize.Take(command, source.oversize, data.oversize);
    kObjective.Take(command, source.objective, job->train.objective);
    kTrainOn.Take(command, source.train_on, data.train_on);
    kDocuments.Take(command, source.documents, data.documents);
  }
  if (source.model.empty()) {
    return InvalidArgument("--model is required, or --job");
  }
  return job;
}

absl::StatusOr<OpenedSource> OpenSource(const DataSourceOptions& source) {
  OpenedSource opened;
  TemplateWish wish;
  wish.name = source.chat_template;
  SHOAL_ASSIGN_OR_RETURN(wish.arguments, ParseTemplateArguments(source.template_arguments));
  wish.day = source.date;
  worker::Learning learning;
  SHOAL_ASSIGN_OR_RETURN(learning.objective, kObjective.Parse(source.objective));
  SHOAL_ASSIGN_OR_RETURN(learning.train_on, kTrainOn.Parse(source.train_on));
  if (learning.objective == plan::Objective::kDpo && learning.train_on != plan::TrainOn::kAll) {
    return InvalidArgument(
        "--train-on {} contradicts --objective dpo: what is learnt of pairs is what was chosen",
        source.train_on);
  }
  if (learning.objective == plan::Objective::kPretrain && source.max_sequence_tokens < 2) {
    return InvalidArgument("--max-sequence-tokens {}: documents are cut to 2 at least",
                           source.max_sequence_tokens);
  }
  SHOAL_ASSIGN_OR_RETURN(opened.encoder, OpenDataEncoder(source.model, wish, learning));
  SHOAL_ASSIGN_OR_RETURN(opened.prepare.fields, ParseFields(source.fields));
  SHOAL_RETURN_IF_ERROR(worker::CheckFields(opened.prepare.fields));
  SHOAL_ASSIGN_OR_RETURN(opened.prepare.oversize, kOversize.Parse(source.oversize));
  SHOAL_ASSIGN_OR_RETURN(opened.prepare.documents, kDocuments.Parse(source.documents));
  opened.prepare.max_sequence_tokens = source.max_sequence_tokens;
  return opened;
}

std::string TemplateWarning(plan::Template kind, const std::string& model_folder,
                            const worker::Tokenizer* tokenizer) {
  const auto fitting = worker::ChooseTemplate("auto", model_folder, tokenizer);
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
