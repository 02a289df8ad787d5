// Opens samples and a model folder for tokenising: for `shoal data`, `train` and `eval`.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/chat_template.h"
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
  std::unique_ptr<worker::Tokenizer> tokenizer;  // null if the model folder has none
  std::unique_ptr<worker::SampleEncoder> encoder;
};

// What somebody wants to be written with: as worker::TemplateChoice, which SettleTemplate makes of
// it. InvalidArgument for what is neither a name nor the path of a template.
struct TemplateWish {
  std::string name = "auto";
  std::map<std::string, std::string> arguments;
  std::string day = {};
};
absl::StatusOr<worker::TemplateChoice> SettleTemplate(const TemplateWish& wish,
                                                      const std::string& model_folder,
                                                      const worker::Tokenizer* tokenizer);

// Reads tokenizer and vocabulary from the model folder. Without tokenizer.json the data must be
// input_ids.
absl::StatusOr<DataEncoder> OpenDataEncoder(const std::string& model_folder,
                                            const TemplateWish& wish,
                                            const worker::Learning& learning);
// As the job says.
absl::StatusOr<DataEncoder> OpenDataEncoder(const plan::Job& job);

// Parse the entries of --field and --template-argument; InvalidArgument names one without '='.
absl::StatusOr<std::map<std::string, std::string>> ParseFields(
    const std::vector<std::string>& entries);
absl::StatusOr<std::map<std::string, std::string>> ParseTemplateArguments(
    const std::vector<std::string>& entries);

// Adds --template, which `help` says more of, and --template-argument.
void AddTemplateOptions(CLI::App& command, const std::string& help, std::string& name,
                        std::vector<std::string>& arguments);

// Of options that name samples.
inline constexpr std::string_view kSamplesHelp =
    "Samples: a file, a folder, or a pattern in quotes ('data/part-*.jsonl.gz')";

// How to tokenise samples: same choices as a job's data section.
struct DataSourceOptions {
  std::string job;  // a job file that says what else is left open; empty: none
  std::string input;
  std::string model;  // folder with the tokenizer and config.json
  std::string chat_template = "auto";
  std::vector<std::string> template_arguments;  // NAME=VALUE
  std::vector<std::string> fields;              // OURS=THEIRS
  std::string objective = "sft";
  std::string train_on = "all";
  std::string documents = "pack";
  std::string date;  // that the template is told; empty: today
  int64_t max_sequence_tokens = 2048;
  std::string oversize = "error";
};

// Adds all options but the file.
void AddSourceOptions(CLI::App& command, DataSourceOptions& source);

// Adds --job: what is left open on the command line is the job's.
void AddJobOption(CLI::App& command, DataSourceOptions& source);
// The job of --job as one that computes on the CPU, which fills in what `command` was not given;
// nullopt without one. InvalidArgument where the model is not known then.
absl::StatusOr<std::optional<plan::Job>> TakeJob(const CLI::App& command,
                                                 DataSourceOptions& source);

// What `command` was not given is the job's.
void TakeUnlessGiven(const auto& command, const char* option, auto& into, auto of_job) {
  if (command.count(option) == 0) {
    into = std::move(of_job);
  }
}

struct OpenedSource {
  DataEncoder encoder;
  worker::PrepareOptions prepare;
};
absl::StatusOr<OpenedSource> OpenSource(const DataSourceOptions& source);

// Where the model's folder or tokenizer is made for another template than `kind`: a line that says
// so; else empty.
std::string TemplateWarning(plan::Template kind, const std::string& model_folder,
                            const worker::Tokenizer* tokenizer);

}  // namespace shoal::cli
