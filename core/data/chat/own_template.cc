#include "core/data/chat/own_template.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/data/tokenizer/unicode.h"
#include "fmt/ranges.h"
#include "xxhash.h"

namespace shoal::worker {
namespace {

using jinja::Text;
using jinja::Value;
using OrderedJson = nlohmann::ordered_json;

constexpr int32_t kOtherData = INT32_MAX;  // tools: of no message

int32_t SourceOf(size_t message) { return static_cast<int32_t>(message) + 1; }

// Names under which reasoning is passed; the first is what most templates read.
constexpr std::array<const char*, 3> kReasoning = {"reasoning_content", "thinking", "reasoning"};

// The fields of a message. Its role and the names of fields are the template's: they are what it
// writes special tokens with.
absl::StatusOr<Value> MessageValue(const ChatMessage& message, int32_t source, bool answers) {
  std::vector<std::pair<Text, Value>> items;
  const auto set = [&](const std::string& key, Value value) {
    std::erase_if(items, [&](const auto& item) { return item.first.str() == key; });
    items.emplace_back(Text(key), std::move(value));
  };
  set("role", Value(Text(std::string(Name(message.role)))));
  const int32_t of_reasoning = answers ? -source : source;
  const size_t thought = BytesOfReasoning(message.content);
  Text content(message.content.substr(0, thought), {.source = of_reasoning});
  content.Append(std::string_view(message.content).substr(thought), {.source = source});
  set("content", Value(std::move(content)));
  for (const auto& [key, value] : message.more.items()) {
    const bool reasons = std::ranges::find(kReasoning, key) != kReasoning.end();
    set(key, Value::FromJson(value, reasons ? of_reasoning : source));
  }
  for (const char* name : kReasoning) {
    const auto reasoning = message.more.find(name);
    if (reasoning != message.more.end() && !reasoning->is_null()) {
      set(kReasoning[0], Value::FromJson(*reasoning, of_reasoning));
      if (!message.more.contains(kReasoning[1])) {
        set(kReasoning[1], Value::FromJson(*reasoning, of_reasoning));
      }
      break;
    }
  }
  return jinja::MakeDict(std::move(items));
}

size_t CommonBeginning(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

bool HasWord(std::string_view text, std::string_view word) {
  const auto is_part = [text](size_t at) {
    return at < text.size() && (absl::ascii_isalnum(text[at]) || text[at] == '_');
  };
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) {
      return true;
    }
  }
  return false;
}

// A token without the white space that it takes from beside it, which may be a message's.
TextRange Trimmed(std::string_view text, const Segment& token) {
  TextRange span{token.begin, token.end};
  const auto rest = [&] { return text.substr(span.begin, span.end - span.begin); };
  while (!rest().empty() && IsWhitespace(FirstCharacter(rest()))) {
    span.begin += CharacterLength(text[span.begin]);
  }
  while (!rest().empty() && IsWhitespace(LastCharacter(rest()))) {
    span.end = span.begin + LastCharacterStart(rest());
  }
  return span.begin < span.end ? span : TextRange{token.begin, token.end};
}

}  // namespace

absl::StatusOr<OwnTemplate> OwnTemplate::Create(const TemplateSource& source,
                                                const std::map<std::string, std::string>& arguments,
                                                const Tokenizer& tokenizer,
                                                const formats::SpecialTokens& special,
                                                const OwnTemplateOptions& options) {
  SHOAL_ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source.text, source.name));
  OwnTemplate own(std::move(parsed), tokenizer);
  if (!source.tool_text.empty()) {
    SHOAL_ASSIGN_OR_RETURN(own.with_tools_,
                           jinja::Template::Parse(source.tool_text, source.tool_name));
  }
  own.options_ = {.limits = options.limits, .now = options.day};
  own.answers_ = options.answers;
  std::string key = source.text + '\0' + source.tool_text;
  own.tells_day_ = key.find("strftime_now") != std::string::npos;
  for (const auto& [name, token] : source.tokens) {
    if (!token.empty()) {
      own.given_.emplace_back(name, Value(Text(token)));
    }
    key += fmt::format("|{}={}", name, token);
  }
  SHOAL_RETURN_IF_ERROR(own.TakeArguments(arguments, source.text + '\0' + source.tool_text));
  for (const auto& [name, value] : arguments) {
    key += fmt::format("|{}:{}:{}", name, value.size(), value);
  }
  for (const int64_t stop : special.stops) {
    own.stops_.push_back(static_cast<int32_t>(stop));
  }
  SHOAL_RETURN_IF_ERROR(own.Probe(special));
  own.signature_ = fmt::format("own:{:016x}:{}", XXH3_64bits(key.data(), key.size()),
                               fmt::join(own.stops_, ","));
  return own;
}

absl::Status OwnTemplate::TakeArguments(const std::map<std::string, std::string>& arguments,
                                        const std::string& text) {
  constexpr std::array<std::string_view, 4> kOurs = {"messages", "tools", "documents",
                                                     "add_generation_prompt"};
  for (const auto& [name, value] : arguments) {
    if (std::ranges::find(kOurs, name) != kOurs.end()) {
      return InvalidArgument("template_arguments: '{}' is what every template is given", name);
    }
    if (!HasWord(text, name)) {
      return InvalidArgument("template_arguments: {} has no variable '{}'", template_.name(), name);
    }
    const absl::StatusOr<Json> read = ParseJson(value, name);
    const bool is_text = !read.ok() || !(read->is_boolean() || read->is_number());
    std::erase_if(given_, [&name = name](const auto& given) { return given.first == name; });
    given_.emplace_back(
        name, Value::FromJson(is_text ? OrderedJson(value) : OrderedJson(*read), kOtherData));
  }
  return absl::OkStatus();
}

// `targets` begins with the first that ends behind the span's beginning. 0: none has a part of it.
float OwnTemplate::WeightAt(std::span<const Target> targets, TextRange span) {
  return targets.empty() || targets.front().span.begin >= span.end ? 0 : targets.front().weight;
}

absl::Status OwnTemplate::Probe(const formats::SpecialTokens& special) {
  std::vector<ChatMessage> messages = {{Role::kUser, "Hello!"}};
  const OrderedJson no_tools;
  SHOAL_ASSIGN_OR_RETURN(const Text without, Render(messages, no_tools, false));
  SHOAL_ASSIGN_OR_RETURN(const Text with, Render(messages, no_tools, true));
  messages.push_back({Role::kAssistant, "Hello."});
  SHOAL_ASSIGN_OR_RETURN(const Text turn, Render(messages, no_tools, false));
  FindControl(turn);
  const auto differ = std::mismatch(with.str().begin(), with.str().end(), without.str().begin(),
                                    without.str().end());
  size_t begin = static_cast<size_t>(differ.first - with.str().begin());
  for (const jinja::SpecialToken& token : Specials(with, Segments(with))) {
    if (token.span.begin < begin && begin < token.span.end) {
      begin = token.span.begin;
    }
  }
  prompt_ = with.str().substr(begin);
  end_of_turn_ = static_cast<int32_t>(special.eos);
  const std::vector<Segment> segments = Segments(turn);
  const auto says = MessageSpan(turn, SourceOf(1), PromptParts(), Specials(turn, segments));
  for (const Segment& segment : segments) {
    if (says.has_value() && segment.id >= 0 && Trimmed(turn.str(), segment).end == says->end) {
      end_of_turn_ = segment.id;
    }
  }
  if (end_of_turn_ >= 0 && std::ranges::find(stops_, end_of_turn_) == stops_.end()) {
    stops_.push_back(end_of_turn_);
    control_.push_back(end_of_turn_);
  }
  return absl::OkStatus();
}

// The tokens next to a user's message are those of turns: the last before it, and the first between
// it and the reply. What only a generation prompt has there is none: it may be <think>.
void OwnTemplate::FindControl(const Text& turns) {
  control_ = stops_;
  const std::vector<TextRange> own = jinja::TemplateSpans(turns);
  const auto behind = std::ranges::find_if(own, [](TextRange span) { return span.begin > 0; });
  if (own.empty() || own.front().end == turns.size()) {
    return;
  }
  std::vector<int32_t> written;  // of added tokens, of which there may be thousands
  for (const int32_t id : tokenizer_->added_tokens()) {
    if (turns.str().find(tokenizer_->IdToToken(id).value_or("")) != std::string::npos) {
      written.push_back(id);
    }
  }
  int32_t before = -1;
  for (const Segment& segment : tokenizer_->CutAtTokens(turns.str(), own, written)) {
    const TextRange span = Trimmed(turns.str(), segment);
    if (segment.id < 0 ||
        IsWhitespace(FirstCharacter(std::string_view(turns.str()).substr(span.begin)))) {
      continue;
    }
    if (behind == own.end() || span.end <= behind->begin) {
      before = segment.id;
    } else if (span.end <= behind->end) {
      control_.push_back(segment.id);
      break;
    }
  }
  if (before >= 0) {
    control_.push_back(before);
  }
}

absl::StatusOr<Text> OwnTemplate::Render(std::span<const ChatMessage> messages,
                                         const OrderedJson& tools, bool prompt) const {
  std::vector<Value> list;
  for (size_t i = 0; i < messages.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(list.emplace_back(), MessageValue(messages[i], SourceOf(i), answers_));
  }
  jinja::Variables variables = given_;
  SHOAL_ASSIGN_OR_RETURN(Value all, jinja::MakeList(std::move(list)));
  variables.emplace_back("messages", std::move(all));
  variables.emplace_back("tools", Value::FromJson(tools, kOtherData));
  variables.emplace_back("documents", Value(jinja::None{}));
  variables.emplace_back("add_generation_prompt", Value(prompt));
  const bool by_tools = with_tools_.has_value() && !tools.is_null();
  return (by_tools ? *with_tools_ : template_).Render(variables, options_);
}

std::vector<Segment> OwnTemplate::Segments(const Text& text) const {
  return tokenizer_->CutAtTokens(text.str(), jinja::TemplateSpans(text), control_);
}

std::vector<jinja::SpecialToken> OwnTemplate::Specials(const Text& text,
                                                       const std::vector<Segment>& segments) const {
  std::vector<jinja::SpecialToken> specials;
  for (const Segment& segment : segments) {
    const bool stops = std::ranges::find(stops_, segment.id) != stops_.end();
    const bool control = tokenizer_->IsSpecial(segment.id) ||
                         std::ranges::find(control_, segment.id) != control_.end();
    if (segment.id >= 0 && control) {
      specials.push_back({Trimmed(text.str(), segment), stops});
    }
  }
  return specials;
}

jinja::Prompt OwnTemplate::PromptParts() const {
  const Text prompt(prompt_);
  return jinja::Prompt::From(prompt_, Specials(prompt, Segments(prompt)));
}

// A part of a text has, but for where its ends cut a token, the tokens that it has within it.
absl::Status OwnTemplate::AppendText(std::string_view text, size_t begin,
                                     std::span<const Target> targets, jinja::Budget& budget,
                                     Conversation& out) const {
  const bool first = begin == 0;
  const auto part = [&](size_t bytes) -> absl::StatusOr<std::vector<int32_t>> {
    if (!budget.Walk(bytes).ok()) {
      return ResourceExhausted(
          "{}: to find what is learnt of a text takes too long: it has many turns, and no special "
          "tokens between them",
          template_.name());
    }
    return tokenizer_->EncodeBetween(text.substr(0, bytes), first, control_);
  };
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         tokenizer_->EncodeBetween(text, first, control_));
  const size_t start = out.tokens.size();
  out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
  out.weights.resize(out.tokens.size(), 0);
  for (const auto& [target, weight] : targets) {
    if (target.begin >= begin + text.size()) {
      break;
    }
    size_t from = 0;
    size_t to = ids.size();
    if (target.begin > begin) {
      SHOAL_ASSIGN_OR_RETURN(const auto before, part(target.begin - begin));
      from = CommonBeginning(before, ids);
    }
    if (target.end < begin + text.size()) {
      SHOAL_ASSIGN_OR_RETURN(const auto within, part(target.end - begin));
      const size_t common = CommonBeginning(within, ids);
      to = std::min(ids.size(), common + (common < within.size() ? 1 : 0));
    }
    std::fill(out.weights.begin() + static_cast<int64_t>(start + from),
              out.weights.begin() + static_cast<int64_t>(start + std::max(from, to)), weight);
  }
  return absl::OkStatus();
}

absl::StatusOr<Conversation> OwnTemplate::Tokenized(const Text& text,
                                                    const std::vector<Segment>& segments,
                                                    std::span<const Target> targets,
                                                    jinja::Budget& budget) const {
  Conversation out;
  for (const Segment& segment : segments) {
    const TextRange span =
        segment.id >= 0 ? Trimmed(text.str(), segment) : TextRange{segment.begin, segment.end};
    while (!targets.empty() && targets.front().span.end <= span.begin) {
      targets = targets.subspan(1);
    }
    if (segment.id >= 0) {
      out.tokens.push_back(segment.id);
      out.weights.push_back(WeightAt(targets, span));
      continue;
    }
    SHOAL_RETURN_IF_ERROR(
        AppendText(std::string_view(text.str()).substr(span.begin, span.end - span.begin),
                   span.begin, targets, budget, out));
  }
  return out;
}

// Of what {% generation %} marks: all weigh the same, or there is one of each message.
absl::StatusOr<std::vector<float>> OwnTemplate::WeightsOf(std::span<const ChatMessage> messages,
                                                          size_t marked) const {
  std::vector<float> weights;
  for (const ChatMessage& message : messages) {
    if (message.role == Role::kAssistant) {
      weights.push_back(message.weight);
    }
  }
  const float first = weights.empty() ? 1 : weights.front();
  if (std::ranges::count(weights, first) == std::ssize(weights)) {
    return std::vector<float>(marked, first);
  }
  if (marked != 0 && marked != weights.size()) {
    return InvalidArgument(
        "weights of messages differ (those of which nothing is learnt weigh 0), and {} marks {} "
        "{} by {{% generation %}} for {} messages of the assistant: only all of them may be "
        "learnt, with one weight",
        template_.name(), marked, marked == 1 ? "text" : "texts", weights.size());
  }
  return weights;
}

absl::StatusOr<std::vector<OwnTemplate::Target>> OwnTemplate::TargetsOf(
    std::span<const ChatMessage> messages, const Text& text,
    const std::vector<jinja::SpecialToken>& specials, bool marks, jinja::Budget& budget,
    int64_t& silent) const {
  std::vector<Target> targets;
  const auto learn = [&](TextRange span, float weight) {
    span.begin = answers_ ? jinja::BehindReasoning(text, span) : span.begin;
    if (weight > 0 && span.begin < span.end) {
      targets.push_back({span, weight});
    }
  };
  const std::vector<TextRange> marked = jinja::GenerationSpans(text);
  // Each is looked for among all runs and tokens.
  const size_t spans = marked.size() + (marks ? 0 : messages.size());
  if (!budget.Read(spans * (text.runs().size() + specials.size())).ok()) {
    return ResourceExhausted("{}: to find what is learnt of {} messages takes too long",
                             template_.name(), messages.size());
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<float> weights, WeightsOf(messages, marked.size()));
  for (size_t i = 0; i < marked.size(); ++i) {
    learn(marked[i], weights[i]);
  }
  const jinja::Prompt prompt = PromptParts();
  for (size_t i = 0; i < messages.size() && !marks; ++i) {
    if (messages[i].role != Role::kAssistant || messages[i].weight == 0) {
      continue;
    }
    if (const auto says = MessageSpan(text, SourceOf(i), prompt, specials); says.has_value()) {
      learn(*says, messages[i].weight);
    } else {
      ++silent;
    }
  }
  std::ranges::stable_sort(targets, {}, [](const Target& target) { return target.span.begin; });
  size_t end = 0;
  std::erase_if(targets, [&end](Target& target) {
    target.span.begin = std::max(target.span.begin, end);
    end = std::max(end, target.span.end);
    return target.span.begin >= target.span.end;
  });
  return targets;
}

// Whether a template writes the first reply otherwise once others follow, as those do that drop
// earlier reasoning. False where that reply is not learnt.
bool OwnTemplate::IsRewritten(std::span<const ChatMessage> messages, const OrderedJson& tools,
                              const Text& text,
                              const std::vector<jinja::SpecialToken>& specials) const {
  const auto replies = [](const ChatMessage& message) { return message.role == Role::kAssistant; };
  const auto first = std::ranges::find_if(messages, replies);
  if (first == messages.end() || first->weight == 0 ||
      std::find_if(first + 1, messages.end(), replies) == messages.end()) {
    return false;
  }
  const auto index = static_cast<size_t>(first - messages.begin());
  const absl::StatusOr<Text> alone = Render(messages.first(index + 1), tools, false);
  if (!alone.ok()) {
    return false;
  }
  const auto said = [&](const Text& of, const std::vector<jinja::SpecialToken>& tokens) {
    const auto span = MessageSpan(of, SourceOf(index), PromptParts(), tokens);
    return span.has_value() ? of.str().substr(span->begin, span->end - span->begin) : "";
  };
  return said(text, specials) != said(*alone, Specials(*alone, Segments(*alone)));
}

absl::StatusOr<Conversation> OwnTemplate::Encode(std::span<const ChatMessage> messages,
                                                 const OrderedJson& tools) const {
  SHOAL_ASSIGN_OR_RETURN(const Text text, Render(messages, tools, false));
  const std::vector<Segment> segments = Segments(text);
  const std::vector<jinja::SpecialToken> specials = Specials(text, segments);
  const bool marks = with_tools_.has_value() && !tools.is_null() ? with_tools_->has_generation()
                                                                 : template_.has_generation();
  jinja::Budget budget(options_.limits);
  int64_t silent = 0;
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Target> targets,
                         TargetsOf(messages, text, specials, marks, budget, silent));
  SHOAL_ASSIGN_OR_RETURN(Conversation out, Tokenized(text, segments, targets, budget));
  out.silent = silent;
  out.rewritten = IsRewritten(messages, tools, text, specials);
  return out;
}

absl::StatusOr<std::vector<int32_t>> OwnTemplate::EncodePrompt(
    std::span<const ChatMessage> messages, const OrderedJson& tools) const {
  SHOAL_ASSIGN_OR_RETURN(const Text text, Render(messages, tools, true));
  jinja::Budget budget(options_.limits);
  SHOAL_ASSIGN_OR_RETURN(Conversation out, Tokenized(text, Segments(text), {}, budget));
  return std::move(out.tokens);
}

std::string OwnTemplate::DecodeReply(std::span<const int32_t> ids) const {
  while (!ids.empty() && std::ranges::find(stops_, ids.back()) != stops_.end()) {
    ids = ids.first(ids.size() - 1);
  }
  // Decodes it after the prompt, since decoders treat the first token of a text differently.
  const Text prompt(prompt_);
  jinja::Budget budget(options_.limits);
  absl::StatusOr<Conversation> both = Tokenized(prompt, Segments(prompt), {}, budget);
  if (!both.ok()) {
    return tokenizer_->Decode(ids);
  }
  const std::string before = tokenizer_->Decode(both->tokens);
  both->tokens.insert(both->tokens.end(), ids.begin(), ids.end());
  const std::string text = tokenizer_->Decode(both->tokens);
  return text.substr(text.starts_with(before) ? before.size() : 0);
}

}  // namespace shoal::worker
