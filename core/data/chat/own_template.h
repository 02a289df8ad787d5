// The chat template of a model's own folder, over the folder's tokenizer.
//
// A conversation is rendered as a whole, and tokenised as transformers does it: what lies between
// special tokens as one text. A control token is read only where the template wrote all of it, so
// "<|im_end|>" within a message is ten characters of text: all that the tokenizer lists as special,
// those that stop generation, and what the template begins and ends turns with.
//
// The loss is on what the template marks by {% generation %}; where it marks nothing, on what each
// message of the assistant says: core/data/jinja/targets.h. A token that is partly so is learnt.
//
// Immutable; threads may share one. The tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/chat/message.h"
#include "core/data/chat/template_source.h"
#include "core/data/jinja/targets.h"
#include "core/data/jinja/template.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::worker {

struct OwnTemplateOptions {
  std::tm day = {};           // what the template is told of the time
  bool answers = false;       // reasoning is not learnt
  jinja::Limits limits = {};  // also of finding what is learnt
};

class OwnTemplate {
 public:
  // `arguments` are TemplateChoice's. InvalidArgument if it is no template, lacks any of those, or
  // raises an error for any conversation.
  static absl::StatusOr<OwnTemplate> Create(const TemplateSource& source,
                                            const std::map<std::string, std::string>& arguments,
                                            const Tokenizer& tokenizer,
                                            const formats::SpecialTokens& special,
                                            const OwnTemplateOptions& options);

  // `tools` is a list, or null.
  absl::StatusOr<Conversation> Encode(std::span<const ChatMessage> messages,
                                      const nlohmann::ordered_json& tools) const;
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(std::span<const ChatMessage> messages,
                                                    const nlohmann::ordered_json& tools) const;
  std::string DecodeReply(std::span<const int32_t> ids) const;

  std::string Signature() const { return signature_; }
  bool tells_day() const { return tells_day_; }  // calls strftime_now
  const std::string& name() const { return template_.name(); }
  int32_t end_of_turn() const { return end_of_turn_; }

 private:
  // A stretch that is learnt.
  struct Target {
    TextRange span;
    float weight = 1;
  };

  OwnTemplate(jinja::Template of, const Tokenizer& tokenizer)
      : template_(std::move(of)), tokenizer_(&tokenizer) {}
  absl::StatusOr<jinja::Text> Render(std::span<const ChatMessage> messages,
                                     const nlohmann::ordered_json& tools, bool prompt) const;
  absl::Status TakeArguments(const std::map<std::string, std::string>& arguments,
                             const std::string& text);
  absl::StatusOr<std::vector<float>> WeightsOf(std::span<const ChatMessage> messages,
                                               size_t marked) const;
  static float WeightAt(std::span<const Target> targets, TextRange span);
  // In order, and none within another. `marks`: the template has {% generation %}.
  absl::StatusOr<std::vector<Target>> TargetsOf(std::span<const ChatMessage> messages,
                                                const jinja::Text& text,
                                                const std::vector<jinja::SpecialToken>& specials,
                                                bool marks, jinja::Budget& budget,
                                                int64_t& silent) const;
  bool IsRewritten(std::span<const ChatMessage> messages, const nlohmann::ordered_json& tools,
                   const jinja::Text& text, const std::vector<jinja::SpecialToken>& specials) const;
  // What add_generation_prompt adds, and what begins and ends a turn.
  absl::Status Probe(const formats::SpecialTokens& special);
  void FindControl(const jinja::Text& turns);
  std::vector<jinja::SpecialToken> Specials(const jinja::Text& text,
                                            const std::vector<Segment>& segments) const;
  jinja::Prompt PromptParts() const;
  absl::StatusOr<Conversation> Tokenized(const jinja::Text& text,
                                         const std::vector<Segment>& segments,
                                         std::span<const Target> targets,
                                         jinja::Budget& budget) const;
  absl::Status AppendText(std::string_view text, size_t begin, std::span<const Target> targets,
                          jinja::Budget& budget, Conversation& out) const;
  std::vector<Segment> Segments(const jinja::Text& text) const;

  jinja::Template template_;
  std::optional<jinja::Template> with_tools_;
  const Tokenizer* tokenizer_;
  jinja::Variables given_;  // tokens by their names, and arguments
  jinja::RenderOptions options_;
  bool answers_ = false;
  std::string prompt_;
  std::vector<int32_t> stops_;
  std::vector<int32_t> control_;  // beside those that the tokenizer lists as special
  int32_t end_of_turn_ = -1;
  std::string signature_;
  bool tells_day_ = false;
};

}  // namespace shoal::worker
