#include "cli/generate_command.h"

#include <algorithm>
#include <memory>

#include "CLI/CLI.hpp"
#include "cli/data/data_source.h"
#include "cli/model_loader.h"
#include "core/base/clock.h"
#include "core/base/flag_checks.h"
#include "core/base/status.h"
#include "core/data/chat_template.h"
#include "nlohmann/json.hpp"
#include "worker/model/generate.h"

namespace shoal::cli {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // what a half character decodes to

struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<int32_t> stops;
};

absl::StatusOr<Prompt> ChatPrompt(const GenerateOptions& options, const LoadedModel& model) {
  SHOAL_ASSIGN_OR_RETURN(const plan::Template kind,
                         TemplateFor(options.chat_template, model.tokenizer.get()));
  SHOAL_ASSIGN_OR_RETURN(const auto chat,
                         worker::ChatTemplate::Create(kind, *model.tokenizer, model.special));
  const worker::ChatMessage message{worker::Role::kUser, options.prompt};
  Prompt prompt;
  SHOAL_ASSIGN_OR_RETURN(prompt.tokens, chat.EncodePrompt({&message, 1}));
  prompt.stops.push_back(chat.end_of_turn());
  return prompt;
}

absl::StatusOr<Prompt> TextPrompt(const GenerateOptions& options, const LoadedModel& model) {
  Prompt prompt;
  SHOAL_ASSIGN_OR_RETURN(prompt.tokens, model.tokenizer->Encode(options.prompt));
  const auto bos = static_cast<int32_t>(model.special.bos);
  if (bos >= 0 && (prompt.tokens.empty() || prompt.tokens.front() != bos)) {
    prompt.tokens.insert(prompt.tokens.begin(), bos);
  }
  return prompt;
}

// Decoding a piece on its own would lose the space before its first word, so the whole is decoded
// each time and what is new is handed out, except for a character whose last bytes are still to
// come.
class Streamer {
 public:
  Streamer(const worker::Tokenizer& tokenizer, std::span<const int32_t> prompt)
      : tokenizer_(tokenizer),
        ids_(prompt.begin(), prompt.end()),
        printed_(tokenizer.Decode(ids_).size()) {}

  std::string Add(int32_t id) {
    ids_.push_back(id);
    const std::string text = tokenizer_.Decode(ids_);
    if (text.ends_with(kReplacement) || text.size() < printed_) {
      return "";
    }
    return Rest(text);
  }
  std::string Finish() { return Rest(tokenizer_.Decode(ids_)); }

 private:
  std::string Rest(const std::string& text) {
    std::string piece = text.size() > printed_ ? text.substr(printed_) : "";
    printed_ = std::max(printed_, text.size());
    return piece;
  }
  const worker::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_;
};

}  // namespace

absl::StatusOr<ExitCode> RunGenerate(const GenerateOptions& options, Streams& streams) {
  SHOAL_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(options.model, options.compute));
  SHOAL_ASSIGN_OR_RETURN(Prompt prompt,
                         options.chat ? ChatPrompt(options, model) : TextPrompt(options, model));
  for (const int64_t stop : model.special.stops) {
    prompt.stops.push_back(static_cast<int32_t>(stop));
  }
  Streamer streamer(*model.tokenizer, prompt.tokens);
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (!options.json) {
      streams.out << piece << std::flush;
    }
  };
  worker::GenerateOptions generate{.max_new_tokens = options.max_new_tokens,
                                   .temperature = options.temperature,
                                   .seed = options.seed,
                                   .stop_tokens = prompt.stops,
                                   .on_token = [&](int32_t id) { emit(streamer.Add(id)); }};
  const absl::Time start = RealClock().Now();
  SHOAL_ASSIGN_OR_RETURN(
      const std::vector<int32_t> tokens,
      worker::Generate(*model.transformer, *model.weights, prompt.tokens, generate));
  const double seconds = absl::ToDoubleSeconds(RealClock().Now() - start);
  emit(streamer.Finish());
  if (options.json) {
    PrintJson(streams.out, {{"event", "generation"},
                            {"prompt", options.prompt},
                            {"text", text},
                            {"prompt_tokens", prompt.tokens.size()},
                            {"tokens", tokens.size()},
                            {"seconds", seconds}});
  } else {
    streams.out << "\n";
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
  command->add_option("--prompt", options->prompt, "Text to go on from")->required();
  command->add_flag("--chat", options->chat,
                    "The prompt is a user's message, put through the chat template");
  command
      ->add_option("--template", options->chat_template,
                   "With --chat: auto, plain, chatml or llama3")
      ->check(CLI::IsMember({"auto", "plain", "chatml", "llama3"}))
      ->capture_default_str();
  command->add_option("--max-new-tokens", options->max_new_tokens, "At most this many")
      ->check(AtLeast(1))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: the most likely token each time")
      ->check(AtLeast(0.0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the sampling")->capture_default_str();
  command->add_option("--compute", options->compute, "auto, fp32 or bf16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "A JSON line at the end instead of text as it comes");
  command->callback([options, &action] {
    action = [options](Streams& streams) { return RunGenerate(*options, streams); };
  });
}

}  // namespace shoal::cli
