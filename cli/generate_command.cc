#include "cli/generate_command.h"

#include <iterator>
#include <memory>
#include <optional>
#include <sstream>

#include "CLI/CLI.hpp"
#include "cli/data/data_source.h"
#include "cli/generated_text.h"
#include "cli/model_loader.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/chat_template.h"
#include "nlohmann/json.hpp"
#include "worker/model/generate.h"

namespace shoal::cli {
namespace {

absl::StatusOr<std::vector<int32_t>> TextPrompt(const std::string& text, const LoadedModel& model) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, model.tokenizer->Encode(text));
  const auto bos = static_cast<int32_t>(model.special.bos);
  if (bos >= 0 && (tokens.empty() || tokens.front() != bos)) {
    tokens.insert(tokens.begin(), bos);
  }
  return tokens;
}

absl::StatusOr<std::vector<std::string>> LinesOf(std::istream& lines) {
  std::vector<std::string> prompts;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) {
      prompts.push_back(line);
    }
  }
  if (prompts.empty()) {
    return InvalidArgument("there is no line with a prompt");
  }
  return prompts;
}

absl::StatusOr<std::vector<std::string>> PromptsOf(const GenerateOptions& options,
                                                   std::istream& in) {
  if (options.prompts_file == "-") {
    return LinesOf(in);
  }
  if (!options.prompts_file.empty()) {
    const auto text = ReadFile(options.prompts_file);
    SHOAL_RETURN_IF_ERROR(Annotate(text.status(), "--prompts"));
    std::istringstream file(*text);
    auto lines = LinesOf(file);
    SHOAL_RETURN_IF_ERROR(Annotate(lines.status(), "--prompts " + options.prompts_file));
    return lines;
  }
  std::vector<std::string> prompts = options.prompts;
  for (std::string& prompt : prompts) {
    if (prompt == "-") {
      prompt.assign(std::istreambuf_iterator<char>(in), {});
    }
  }
  return prompts;
}

// One after the other, with one model.
class Generation {
 public:
  Generation(const GenerateOptions& options, LoadedModel model, Streams& streams)
      : options_(options), model_(std::move(model)), streams_(streams) {
    for (const int64_t stop : model_.special.stops) {
      stop_tokens_.push_back(static_cast<int32_t>(stop));
    }
  }

  absl::Status OpenChat() {
    TemplateWish wish;
    wish.name = options_.chat_template;
    SHOAL_ASSIGN_OR_RETURN(wish.arguments, ParseTemplateArguments(options_.template_arguments));
    SHOAL_ASSIGN_OR_RETURN(const worker::TemplateChoice choice,
                           SettleTemplate(wish, options_.model, model_.tokenizer.get()));
    SHOAL_ASSIGN_OR_RETURN(chat_,
                           worker::ChatTemplate::Create(choice, *model_.tokenizer, model_.special));
    stop_tokens_.push_back(chat_->end_of_turn());
    return absl::OkStatus();
  }

  absl::Status Answer(const std::string& prompt) {
    std::vector<int32_t> tokens;
    if (chat_.has_value()) {
      const worker::ChatMessage message{worker::Role::kUser, prompt};
      SHOAL_ASSIGN_OR_RETURN(tokens, chat_->EncodePrompt({&message, 1}));
    } else {
      SHOAL_ASSIGN_OR_RETURN(tokens, TextPrompt(prompt, model_));
    }
    return Continue(prompt, tokens).status();
  }

  // Until the input ends.
  absl::Status Converse() {
    const bool asks = streams_.err_terminal.interactive;
    std::vector<worker::ChatMessage> messages;
    for (std::string line;
         streams_.err << (asks ? "> " : "") << std::flush, std::getline(streams_.in, line);) {
      if (line.empty()) {
        continue;
      }
      messages.push_back({worker::Role::kUser, line});
      SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, chat_->EncodePrompt(messages));
      SHOAL_ASSIGN_OR_RETURN(std::string reply, Continue(line, tokens));
      messages.push_back({worker::Role::kAssistant, std::move(reply)});
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<std::string> Continue(const std::string& prompt,
                                       const std::vector<int32_t>& prompt_tokens) {
    TokenText pieces(*model_.tokenizer, prompt_tokens);
    StopStrings stops(options_.stops);
    std::string text;
    const auto emit = [&](const std::string& piece) {
      text += piece;
      if (!options_.json) {
        streams_.out << piece << std::flush;
      }
    };
    const worker::GenerateOptions generate{.max_new_tokens = options_.max_new_tokens,
                                           .temperature = options_.temperature,
                                           .top_k = options_.top_k,
                                           .top_p = options_.top_p,
                                           .seed = options_.seed,
                                           .stop_tokens = stop_tokens_,
                                           .on_token = [&](int32_t id) {
                                             emit(stops.Add(pieces.Add(id)));
                                             return !stops.stopped();
                                           }};
    const absl::Time start = RealClock().Now();
    SHOAL_ASSIGN_OR_RETURN(
        const std::vector<int32_t> tokens,
        worker::Generate(*model_.transformer, *model_.weights, prompt_tokens, generate));
    const double seconds = absl::ToDoubleSeconds(RealClock().Now() - start);
    emit(stops.Add(pieces.Finish()));
    emit(stops.Finish());
    if (options_.json) {
      PrintJson(streams_.out, {{"event", "generation"},
                               {"prompt", prompt},
                               {"text", text},
                               {"prompt_tokens", prompt_tokens.size()},
                               {"tokens", tokens.size()},
                               {"seconds", seconds}});
    } else {
      streams_.out << std::endl;
    }
    return text;
  }

  const GenerateOptions& options_;
  LoadedModel model_;
  Streams& streams_;
  std::vector<int32_t> stop_tokens_;
  std::optional<worker::ChatTemplate> chat_;
};

}  // namespace

absl::StatusOr<ExitCode> RunGenerate(const GenerateOptions& options, Streams& streams) {
  const bool converses = options.prompts.empty() && options.prompts_file.empty();
  if (converses && !options.chat) {
    return InvalidArgument(
        "say --prompt TEXT, --prompts FILE (a prompt a line), or --chat for a conversation");
  }
  std::vector<std::string> prompts;
  if (!converses) {
    SHOAL_ASSIGN_OR_RETURN(prompts, PromptsOf(options, streams.in));
  }
  SHOAL_ASSIGN_OR_RETURN(LoadedModel model,
                         LoadModel(options.model, options.adapter, options.compute));
  Generation generation(options, std::move(model), streams);
  if (options.chat) {
    SHOAL_RETURN_IF_ERROR(generation.OpenChat());
  }
  if (converses) {
    SHOAL_RETURN_IF_ERROR(generation.Converse());
    return ExitCode::kDone;
  }
  for (const std::string& prompt : prompts) {
    SHOAL_RETURN_IF_ERROR(generation.Answer(prompt));
  }
  return ExitCode::kDone;
}

void AddGenerate(CLI::App& app, CommandAction& action) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command =
      AddCommand(app, "generate", "What the model says next (prints the continuation alone)",
                 "shoal generate --model checkpoints/huggingface --prompt \"Once upon a time\" "
                 "--max-new-tokens 40");
  command->add_option("--model", options->model, "Hugging Face folder")->required();
  command->add_option("--adapter", options->adapter, "A folder of PEFT's, of that model");
  CLI::Option* prompts =
      command
          ->add_option("--prompt", options->prompts,
                       "Text to go on from, or - for all of stdin (may be repeated)")
          ->allow_extra_args(false);
  command
      ->add_option("--prompts", options->prompts_file,
                   "File with a prompt a line, or - for stdin's lines")
      ->excludes(prompts);
  command->add_flag("--chat", options->chat,
                    "A prompt is a user's message, put through the chat template; without one, "
                    "stdin's lines are the turns of a conversation");
  AddTemplateOptions(*command, "With --chat: ", options->chat_template,
                     options->template_arguments);
  command->add_option("--max-new-tokens", options->max_new_tokens, "At most this many")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: the most likely token each time")
      ->check(AtLeast(0.0))
      ->capture_default_str();
  command
      ->add_option("--top-k", options->top_k,
                   "With a temperature: one of so many, the likeliest; 0: of all")
      ->check(AtLeast(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", options->top_p,
                   "With a temperature: one of the likeliest that have this probability together")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  command
      ->add_option("--stop", options->stops,
                   "Text that ends the continuation, and is no part of it (may be repeated)")
      ->allow_extra_args(false);
  command->add_option("--seed", options->seed, "Of the sampling")->capture_default_str();
  command->add_option("--compute", options->compute, "auto, fp32 or bf16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  command->add_flag("--json", options->json,
                    "A JSON line for each prompt at its end, instead of text as it comes");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunGenerate(*options, streams); };
  });
}

}  // namespace shoal::cli
