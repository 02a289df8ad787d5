#include "cli/eval_command.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/data/data_source.h"
#include "cli/model_loader.h"
#include "cli/run/temporary_folder.h"
#include "cli/terminal/progress_bar.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/answer.h"
#include "core/data/jsonl.h"
#include "core/data/sample_reader.h"
#include "core/data/token_file.h"
#include "nlohmann/json.hpp"
#include "worker/model/generate.h"
#include "worker/model/runner.h"

namespace shoal::cli {
namespace {

struct LossResult {
  int64_t samples = 0;
  int64_t targets = 0;
  double loss = 0;  // per target token, weighted, in nats
};

struct MatchResult {
  int64_t checked = 0;
  int64_t right = 0;
};

// Samples in file order, packed until the limit is reached.
absl::StatusOr<LossResult> MeasureLoss(const EvalOptions& options, const formats::TokenFile& file,
                                       LoadedModel& model, ProgressBar& bar) {
  const int64_t samples =
      options.limit > 0 ? std::min(options.limit, file.samples()) : file.samples();
  LossResult result{.samples = samples};
  double loss_sum = 0;
  double weight = 0;
  worker::PackedBatch batch;
  const auto flush = [&]() -> absl::Status {
    if (batch.token_count() > 0) {
      SHOAL_ASSIGN_OR_RETURN(const worker::MicrobatchResult part,
                             worker::EvaluateLoss(*model.transformer, batch, *model.weights));
      loss_sum += part.loss_sum;
      result.targets += part.targets;
    }
    batch = {};
    return absl::OkStatus();
  };
  for (int64_t i = 0; i < samples; ++i) {
    SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample sample, file.Sample(i));
    if (batch.token_count() + static_cast<int64_t>(sample.tokens.size()) >
        options.microbatch_tokens) {
      SHOAL_RETURN_IF_ERROR(flush());
      bar.Items("evaluating, samples", i, samples);
    }
    batch.Append(sample.tokens, sample.labels, sample.weights);
    weight += file.weight(i);
  }
  SHOAL_RETURN_IF_ERROR(flush());
  result.loss = weight > 0 ? loss_sum / weight : 0;
  return result;
}

// Whether the model's own reply to the sample's last turn agrees with its answer.
absl::StatusOr<bool> ReplyIsRight(const EvalOptions& options, const worker::JsonlSample& sample,
                                  const std::string& reference, const worker::ChatTemplate& chat,
                                  LoadedModel& model) {
  const std::span<const worker::ChatMessage> all(sample.messages);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                         chat.EncodePrompt(all.first(all.size() - 1), sample.tools));
  worker::GenerateOptions generate{.max_new_tokens = options.max_new_tokens};
  for (const int64_t stop : model.special.stops) {
    generate.stop_tokens.push_back(static_cast<int32_t>(stop));
  }
  generate.stop_tokens.push_back(chat.end_of_turn());
  const auto reply = worker::Generate(*model.transformer, *model.weights, prompt, generate);
  if (reply.status().code() == absl::StatusCode::kOutOfRange) {
    return false;  // the prompt fills the model's positions
  }
  SHOAL_RETURN_IF_ERROR(reply.status());
  return worker::CheckAnswer(reference, chat.DecodeReply(*reply));
}

absl::StatusOr<MatchResult> MeasureMatch(const EvalOptions& options,
                                         const worker::SampleEncoder& encoder, LoadedModel& model,
                                         ProgressBar& bar) {
  MatchResult result;
  if (options.answers == 0 || !encoder.chat().has_value()) {
    return result;
  }
  worker::JsonlOptions jsonl{.vocabulary = model.spec.vocabulary};
  SHOAL_ASSIGN_OR_RETURN(jsonl.fields, ParseFields(options.source.fields));
  SHOAL_ASSIGN_OR_RETURN(const auto reader, worker::SampleReader::Open(options.source.input));
  while (result.checked < options.answers) {
    SHOAL_ASSIGN_OR_RETURN(const auto line, reader->Next());
    if (!line.has_value()) {
      break;
    }
    SHOAL_ASSIGN_OR_RETURN(const worker::JsonlSample sample,
                           worker::ParseJsonlLine(*line, jsonl, reader->where()));
    const auto reference = worker::ReferenceAnswer(sample);
    if (!reference.has_value() || sample.messages.empty() ||
        sample.messages.back().role != worker::Role::kAssistant) {
      continue;
    }
    SHOAL_ASSIGN_OR_RETURN(const bool right,
                           ReplyIsRight(options, sample, *reference, *encoder.chat(), model));
    ++result.checked;
    result.right += right ? 1 : 0;
    bar.Items("checking answers", result.checked, options.answers);
  }
  return result;
}

void Print(const EvalOptions& options, const worker::PrepareSummary& data, const LossResult& loss,
           const MatchResult& match, Streams& streams) {
  if (options.json) {
    nlohmann::json line = {{"event", "eval"},
                           {"samples", loss.samples},
                           {"target_tokens", loss.targets},
                           {"loss", loss.loss},
                           {"perplexity", std::exp(loss.loss)},
                           {"skipped", data.skipped_oversize + data.skipped_no_target},
                           {"answers_checked", match.checked}};
    line["exact_match"] =
        match.checked > 0
            ? nlohmann::json(static_cast<double>(match.right) / static_cast<double>(match.checked))
            : nlohmann::json(nullptr);
    PrintJson(streams.out, line);
    return;
  }
  streams.out << fmt::format(
      "loss per target token: {:.4f} (perplexity {:.2f}) over {} samples, {} target tokens\n",
      loss.loss, std::exp(loss.loss), WithThousands(loss.samples), WithThousands(loss.targets));
  if (match.checked > 0) {
    streams.out << fmt::format(
        "exact match: {} of {} answers ({:.1f}%)\n", match.right, match.checked,
        100.0 * static_cast<double>(match.right) / static_cast<double>(match.checked));
  }
  if (data.skipped_oversize + data.skipped_no_target + data.truncated > 0) {
    streams.out << worker::Describe(data) << "\n";
  }
}

// The model is what the job has left, or else what it begins with.
absl::Status TakeJobFor(const CLI::App& command, EvalOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(const auto job, TakeJob(command, options.source));
  if (job.has_value()) {
    const std::string exported = job->checkpoint.directory + "/huggingface";
    std::error_code error;
    const bool said = command.count("--model") > 0 || !options.adapter.empty();
    if (!said && std::filesystem::exists(exported + "/config.json", error)) {
      options.source.model = exported;
    }
    if (!said && std::filesystem::exists(exported + "/adapter_config.json", error)) {
      options.adapter = exported;
    }
    if (options.source.input.empty()) {
      options.source.input = job->data.validation.path;
    }
    if (command.count("--compute") == 0) {
      options.compute = plan::ComputeDType(*job) == DType::kBF16 ? "bf16" : "fp32";
    }
  }
  return options.source.input.empty()
             ? InvalidArgument("--data is required, or a --job with data.validation.path")
             : absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExitCode> RunEval(const EvalOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(LoadedModel model,
                         LoadModel(options.source.model, options.adapter, options.compute));
  SHOAL_ASSIGN_OR_RETURN(OpenedSource opened, OpenSource(options.source));
  if (opened.encoder.encoder->learning().objective == plan::Objective::kDpo) {
    return InvalidArgument(
        "shoal eval takes no pairs of replies (train.objective: dpo); name other samples with "
        "--objective sft, or let the job validate on pairs by data.validation");
  }
  opened.prepare.max_sequence_tokens =
      std::min(opened.prepare.max_sequence_tokens, model.spec.max_positions);
  model.transformer->rotary().ChooseFor(opened.prepare.max_sequence_tokens);
  SHOAL_ASSIGN_OR_RETURN(const auto folder, TemporaryFolder::Create());
  SHOAL_ASSIGN_OR_RETURN(const worker::PreparedData prepared,
                         worker::PrepareCached(options.source.input, folder->path(),
                                               *opened.encoder.encoder, opened.prepare));
  SHOAL_ASSIGN_OR_RETURN(const auto file, formats::TokenFile::Open(prepared.path));
  const bool chats = opened.encoder.encoder->learning().objective != plan::Objective::kPretrain;
  if (const std::string warning = TemplateWarning(
          opened.encoder.encoder->kind(), options.source.model, opened.encoder.tokenizer.get());
      chats && !warning.empty()) {
    streams.err << "shoal: warning: " << warning << std::endl;
  }
  // Nobody reads progress in a file.
  std::ostream nowhere(nullptr);
  ProgressBar bar(streams.err_terminal.interactive ? streams.err : nowhere, streams.err_terminal,
                  RealClock());
  SHOAL_ASSIGN_OR_RETURN(const LossResult loss, MeasureLoss(options, *file, model, bar));
  SHOAL_ASSIGN_OR_RETURN(const MatchResult match,
                         MeasureMatch(options, *opened.encoder.encoder, model, bar));
  bar.Clear();
  Print(options, prepared.summary, loss, match, streams);
  return ExitCode::kDone;
}

void AddEval(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<EvalOptions>();
  options->source.oversize = "skip";
  CLI::App* command =
      AddCommand(app, "eval", "Loss per target token, and exact match where answers can be checked",
                 "shoal eval --model checkpoints/huggingface --data test.jsonl");
  command->add_option("--data", options->source.input,
                      std::string(kSamplesHelp) + " (default: data.validation.path of --job)");
  AddSourceOptions(*command, options->source);
  AddJobOption(*command, options->source);
  command
      ->add_option("--microbatch-tokens", options->microbatch_tokens,
                   "Tokens that go through the model together")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option("--adapter", options->adapter, "A folder of PEFT's, of the model");
  command->add_option("--limit", options->limit, "Samples for the loss; 0: all")
      ->check(AtLeast(0))
      ->capture_default_str();
  command
      ->add_option("--answers", options->answers, "Replies to generate and check at most; 0: none")
      ->check(AtLeast(0))
      ->capture_default_str();
  command->add_option("--max-new-tokens", options->max_new_tokens, "Of a reply")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option("--compute", options->compute, "auto, fp32 or bf16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "A JSON line instead of text");
  command->callback([options, command, &action] {
    action = [options, command](Streams& streams) -> absl::StatusOr<ExitCode> {
      SHOAL_RETURN_IF_ERROR(TakeJobFor(*command, *options));
      return RunEval(*options, streams);
    };
  });
}

}  // namespace shoal::cli
