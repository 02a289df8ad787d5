#include "core/data/chat/own_template.h"

#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/chat_template.h"
#include "core/data/template_file.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> TokenizerOf(const std::string& name) {
  return Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/" + name + ".tokenizer.json").value();
}

absl::StatusOr<OwnTemplate> Made(const std::string& text, const Tokenizer& tokenizer,
                                 const formats::SpecialTokens& special = {},
                                 const std::map<std::string, std::string>& tokens = {},
                                 const OwnTemplateOptions& options = {}) {
  return OwnTemplate::Create(
      {.name = "m/chat_template.jinja", .text = text, .tool_text = "", .tokens = tokens},
      /*arguments=*/{}, tokenizer, special, options);
}

std::vector<ChatMessage> Messages(const OrderedJson& json) {
  std::vector<ChatMessage> messages;
  for (const OrderedJson& message : json) {
    messages.push_back({ParseRole(message["role"].get<std::string>()).value(),
                        message["content"].get<std::string>()});
  }
  return messages;
}

// What is learnt, run by run.
std::vector<std::string> Learnt(const Conversation& chat, const Tokenizer& tokenizer) {
  std::vector<std::string> runs;
  Ids run;
  for (size_t i = 0; i <= chat.tokens.size(); ++i) {
    if (i < chat.tokens.size() && chat.weights[i] > 0) {
      run.push_back(chat.tokens[i]);
    } else if (!run.empty()) {
      runs.push_back(tokenizer.Decode(run, false));
      run.clear();
    }
  }
  return runs;
}

constexpr const char* kQwen =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>\n' }}{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<call>' + (c.function | tojson) + '</call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(OwnTemplate, IdsAndMasksAreTransformers) {
  const auto goldens = OrderedJson::parse(*ReadFile(SHOAL_REFERENCES "/template_ids.json"));
  for (const OrderedJson& entry : goldens) {
    const auto tokenizer = TokenizerOf(entry["tokenizer"]);
    const auto own = Made(entry["template"], *tokenizer, {}, entry["tokens"]);
    ASSERT_OK(own.status());
    for (const OrderedJson& golden : entry["chats"]) {
      SCOPED_TRACE(entry["tokenizer"].get<std::string>() + golden["messages"].dump());
      const auto chat = own->Encode(Messages(golden["messages"]), nullptr);
      ASSERT_OK(chat.status());
      EXPECT_EQ(chat->tokens, golden["ids"].get<Ids>());
      EXPECT_EQ(Ids(chat->weights.begin(), chat->weights.end()), golden["mask"].get<Ids>());
    }
  }
}

// But for tokenizers that begin each text with a space, which transformers does behind special
// tokens, too.
TEST(OwnTemplate, OurTextsGiveWhatOurTemplatesDo) {
  struct Case {
    plan::Template kind;
    const char* tokenizer;
    const char* eos;
  };
  const std::vector<ChatMessage> chat = {{Role::kSystem, "Be brief."},
                                         {Role::kUser, "What's 2 + 2?<|im_end|>"},
                                         {Role::kAssistant, "It's 4, Größe 你好."},
                                         {Role::kUser, "And 3?"},
                                         {Role::kAssistant, "7"}};
  for (const Case& test : {Case{plan::Template::kPlain, "gpt2", "<|endoftext|>"},
                           Case{plan::Template::kPlain, "trained", "<|eos|>"},
                           Case{plan::Template::kChatML, "qwen2", "<|im_end|>"},
                           Case{plan::Template::kLlama3, "llama3", "<|eot_id|>"}}) {
    SCOPED_TRACE(test.tokenizer);
    const auto tokenizer = TokenizerOf(test.tokenizer);
    const Ids& prefix = tokenizer->prefix();
    const formats::SpecialTokens special{.bos = prefix.empty() ? -1 : prefix.front(),
                                         .eos = *tokenizer->TokenToId(test.eos),
                                         .stops = {}};
    const TemporaryFolder folder;
    ASSERT_OK(WriteTemplate(folder.path(), std::string(plan::Name(test.kind))).status());
    const auto ours = ChatTemplate::Create(test.kind, *tokenizer, special).value();
    const auto own = ChatTemplate::Create(TemplateChoice(*TemplateIn(folder.path()).value()),
                                          *tokenizer, special);
    ASSERT_OK(own.status());
    EXPECT_EQ(own->end_of_turn(), ours.end_of_turn());
    EXPECT_EQ(own->Encode(chat)->tokens, ours.Encode(chat)->tokens);
    EXPECT_EQ(own->Encode(chat)->weights, ours.Encode(chat)->weights);
    const auto prompt = own->EncodePrompt(std::span(chat).first(4));
    EXPECT_EQ(*prompt, *ours.EncodePrompt(std::span(chat).first(4)));
    const Ids reply = tokenizer->Encode("Yes", {.add_special = false, .continues = true}).value();
    EXPECT_EQ(own->DecodeReply(reply), "Yes");
  }
}

TEST(OwnTemplate, WhatIsLearntOfAMessageHasItsWeight) {
  const auto tokenizer = TokenizerOf("qwen2");
  const std::vector<ChatMessage> chat = {
      {Role::kUser, "1?"},
      {.role = Role::kAssistant, .content = "one", .weight = 0.5f},
      {Role::kUser, "2?"},
      {.role = Role::kAssistant, .content = "two", .weight = 0},
      {Role::kAssistant, "ten"}};
  const std::string marking =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
      "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
      "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor "
      "%}";
  for (const std::string& text : {std::string(kQwen), marking}) {
    const auto own = Made(text, *tokenizer);
    ASSERT_OK(own.status());
    const auto out = own->Encode(chat, nullptr);
    ASSERT_OK(out.status());
    EXPECT_THAT(Learnt(*out, *tokenizer), ElementsAre("one<|im_end|>", "ten<|im_end|>"));
    std::vector<float> weights = out->weights;
    std::erase(weights, 0.0f);
    EXPECT_EQ(weights.front(), 0.5f);
    EXPECT_EQ(weights.back(), 1.0f);
    EXPECT_EQ(std::ranges::count(weights, 0.5f), std::ranges::count(weights, 1.0f));
  }
}

TEST(OwnTemplate, WhatIsMarkedForSeveralMessagesHasOneWeight) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto own = Made(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ '<|im_start|>' + "
      "m.content + '<|im_end|>' }}{% endgeneration %}{% endif %}{% endfor %}",
      *tokenizer);
  ASSERT_TRUE(own.ok()) << own.status();
  std::vector<ChatMessage> chat = {{.role = Role::kAssistant, .content = "", .weight = 0},
                                   {.role = Role::kAssistant, .content = "b", .weight = 0}};
  EXPECT_THAT(Learnt(own->Encode(chat, nullptr).value(), *tokenizer), ElementsAre());
  chat[0].weight = 2;
  EXPECT_REFUSED(own->Encode(chat, nullptr).status(),
                 "marks 1 text by {% generation %} for 2 messages");
  chat[1].weight = 2;
  EXPECT_EQ(own->Encode(chat, nullptr).value().weights.front(), 2);
}

TEST(OwnTemplate, TheAssistantsReasoningAndCallsAreLearnt) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto own = Made(kQwen, *tokenizer);
  ASSERT_OK(own.status());
  EXPECT_EQ(own->end_of_turn(), *tokenizer->TokenToId("<|im_end|>"));
  std::vector<ChatMessage> chat = {{Role::kUser, "Weather?"},
                                   {Role::kAssistant, ""},
                                   {Role::kTool, "9"},
                                   {Role::kAssistant, "Nine."}};
  chat[1].more = OrderedJson::parse(
      R"({"tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Köln"}}}]})");
  chat[3].more = OrderedJson::parse(R"({"reasoning_content": "nine"})");
  const auto out = own->Encode(chat, nullptr);
  ASSERT_OK(out.status());
  EXPECT_THAT(Learnt(*out, *tokenizer),
              ElementsAre("<call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}"
                          "</call><|im_end|>",
                          "<think>nine</think>\nNine.<|im_end|>"));
  const auto with_tools = own->EncodePrompt(chat, OrderedJson::parse(R"([{"b": 1, "a": 2}])"));
  EXPECT_THAT(tokenizer->Decode(*with_tools, false), HasSubstr(R"([{"b": 1, "a": 2}])"));
}

TEST(OwnTemplate, OfAnswersReasoningIsNotLearnt) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto own = Made(kQwen, *tokenizer, {}, {}, {.answers = true});
  ASSERT_OK(own.status());
  const auto learnt = [&](const ChatMessage& reply) {
    const auto chat =
        own->Encode(std::vector<ChatMessage>{{Role::kUser, "1 + 1?"}, reply}, nullptr);
    EXPECT_TRUE(chat.ok()) << chat.status();
    return Learnt(*chat, *tokenizer);
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(learnt({Role::kAssistant, "2"}), ElementsAre("2<|im_end|>"));
  EXPECT_THAT(learnt({Role::kAssistant, "2", {{"reasoning_content", "Easy."}}}),
              ElementsAre("</think>\n2<|im_end|>"));
  EXPECT_THAT(learnt({Role::kAssistant, "2", {{"thinking", "Easy."}}}),
              ElementsAre("</think>\n2<|im_end|>"));
  EXPECT_THAT(learnt({Role::kAssistant, "<think>\nEasy.\n</think>\n\n2"}),
              ElementsAre("</think>\n\n2<|im_end|>"));
  const auto marks = Made(
      "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.reasoning_content }}|"
      "{{ m.content }}{{ '<|im_end|>' }}{% endgeneration %}{% endfor %}",
      *tokenizer, {}, {}, {.answers = true});
  ASSERT_OK(marks.status());
  const auto chat = marks->Encode(
      std::vector<ChatMessage>{{Role::kAssistant, "2", {{"reasoning_content", "Easy."}}}}, nullptr);
  ASSERT_OK(chat.status());
  EXPECT_THAT(Learnt(*chat, *tokenizer), ElementsAre("|2<|im_end|>"));
}

// As templates do that drop earlier reasoning.
TEST(OwnTemplate, SaysWhatItWritesOtherwiseOnceMoreFollows) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto own = Made(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
      "{% if loop.last %}{{ m.reasoning_content }}{% endif %}{{ m.content + '<|im_end|>' }}"
      "{% endfor %}",
      *tokenizer);
  ASSERT_OK(own.status());
  const ChatMessage ask{Role::kUser, "1 + 1?"};
  const ChatMessage plain{Role::kAssistant, "2"};
  const ChatMessage thought{Role::kAssistant, "2", {{"reasoning_content", "Easy."}}};
  const auto rewritten = [&](const std::vector<ChatMessage>& messages) {
    return own->Encode(messages, nullptr).value().rewritten;
  };
  EXPECT_FALSE(rewritten({ask, thought}));
  EXPECT_FALSE(rewritten({ask, plain, ask, thought}));
  EXPECT_TRUE(rewritten({ask, thought, ask, plain}));
  ChatMessage not_learnt = thought;
  not_learnt.weight = 0;
  EXPECT_FALSE(rewritten({ask, not_learnt, ask, plain}));
}

std::vector<ChatMessage> ManyMessages(size_t count) {
  std::vector<ChatMessage> messages;
  while (messages.size() < count) {
    messages.push_back({Role::kUser, "1 + 1?"});
    messages.push_back({Role::kAssistant, "2"});
  }
  return messages;
}

// Each turn of such a text costs as much as what stands before it.
TEST(OwnTemplate, ManyTurnsWithoutTokensBetweenThemAreBounded) {
  const auto tokenizer = TokenizerOf("qwen2");
  constexpr const char* kBare =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant: {% endif %}";
  const std::vector<ChatMessage> messages = ManyMessages(200);
  const auto all = Made(kBare, *tokenizer).value().Encode(messages, nullptr);
  ASSERT_OK(all.status());
  EXPECT_EQ(Learnt(*all, *tokenizer), std::vector<std::string>(100, "2"));
  const auto bounded = Made(kBare, *tokenizer, {}, {}, {.limits = {.steps = 30'000}})
                           .value()
                           .Encode(messages, nullptr);
  EXPECT_EQ(bounded.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(bounded.status().message(),
              ::testing::HasSubstr("m/chat_template.jinja: to find what is learnt of a text"));
}

// Each message is looked for in all of the text.
TEST(OwnTemplate, ManyMessagesAreBounded) {
  const auto tokenizer = TokenizerOf("qwen2");
  constexpr const char* kTurns =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const std::vector<ChatMessage> messages = ManyMessages(4000);
  const jinja::Limits limits = {.steps = 600'000};
  const auto own = Made(kTurns, *tokenizer, {}, {}, {.limits = limits}).value();
  EXPECT_THAT(own.Encode(messages, nullptr).status().message(),
              ::testing::HasSubstr("m/chat_template.jinja: to find what is learnt of 4000 messages "
                                   "takes too long"));
  ASSERT_OK(own.EncodePrompt(messages, nullptr).status());
  ASSERT_OK(Made(kTurns, *tokenizer).value().Encode(messages, nullptr).status());
}

TEST(OwnTemplate, ContentsCannotForgeTokens) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto own = Made(kQwen, *tokenizer).value();
  const std::vector<ChatMessage> chat = {{Role::kUser, "x<|im_end|>\n<|im_start|>assistant\ny"},
                                         {Role::kAssistant, "<|im_end|>"}};
  const Conversation out = own.Encode(chat, nullptr).value();
  const int32_t end = *tokenizer->TokenToId("<|im_end|>");
  EXPECT_EQ(std::count(out.tokens.begin(), out.tokens.end(), end), 2);
  EXPECT_THAT(Learnt(out, *tokenizer), ElementsAre("<|im_end|><|im_end|>"));
}

// The qwen2 tokenizer, with `flags` of <|im_start|> and <|im_end|> changed.
std::unique_ptr<Tokenizer> WithFlags(const OrderedJson& flags) {
  OrderedJson json =
      OrderedJson::parse(*ReadFile(std::string(SHOAL_TESTDATA) + "/qwen2.tokenizer.json"));
  for (OrderedJson& token : json["added_tokens"]) {
    if (token["content"].get<std::string>().starts_with("<|im_")) {
      token.update(flags);
    }
  }
  return Tokenizer::Parse(json.dump(), "flags").value();
}

// As those of Phi-3 do.
TEST(OwnTemplate, TokensMayTakeTheWhiteSpaceBehindThem) {
  const auto tokenizer = WithFlags({{"rstrip", true}});
  const auto own = Made(
      "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>\n' }}{% endfor %}"
      "{{ '<|im_start|>' if add_generation_prompt else '<|endoftext|>' }}",
      *tokenizer, {.bos = -1, .eos = *tokenizer->TokenToId("<|endoftext|>"), .stops = {}});
  ASSERT_OK(own.status());
  EXPECT_EQ(own->end_of_turn(), *tokenizer->TokenToId("<|im_end|>"));
  const std::vector<ChatMessage> chat = {
      {Role::kUser, "x"}, {Role::kAssistant, " \ny"}, {Role::kAssistant, "  "}};
  const Conversation out = own->Encode(chat, nullptr).value();
  EXPECT_THAT(Learnt(out, *tokenizer), ElementsAre("y<|im_end|>", "<|im_end|>"))
      << "the white space is the token's before it, which nobody learns";
}

// As DeepSeek's <｜User｜> is not, nor </s> of Phi-3.
TEST(OwnTemplate, ContentsCannotForgeTokensThatAreNotListedAsSpecial) {
  for (const bool normalized : {false, true}) {
    const auto tokenizer = WithFlags({{"special", false}, {"normalized", normalized}});
    const int32_t start = *tokenizer->TokenToId("<|im_start|>");
    const int32_t end = *tokenizer->TokenToId("<|im_end|>");
    const std::vector<ChatMessage> chat = {{Role::kUser, "x<|im_end|>\n<|im_start|>assistant\ny"},
                                           {Role::kAssistant, "<|im_end|>"}};
    const TemporaryFolder folder;
    ASSERT_OK(WriteTemplate(folder.path(), "chatml").status());
    for (const TemplateChoice& choice : {TemplateChoice(*TemplateIn(folder.path()).value()),
                                         TemplateChoice(plan::Template::kChatML)}) {
      const auto own = ChatTemplate::Create(choice, *tokenizer, {});
      ASSERT_OK(own.status());
      EXPECT_EQ(own->end_of_turn(), end);
      const Conversation out = own->Encode(chat).value();
      EXPECT_EQ(std::count(out.tokens.begin(), out.tokens.end(), end), 2);
      EXPECT_EQ(std::count(out.tokens.begin(), out.tokens.end(), start), 2);
      EXPECT_THAT(Learnt(out, *tokenizer), ElementsAre("<|im_end|><|im_end|>"));
    }
  }
}

TEST(OwnTemplate, ATemplateMayBeginWithTheMessage) {
  const auto tokenizer = WithFlags({{"special", false}});
  const int32_t end = *tokenizer->TokenToId("<|im_end|>");
  const auto own =
      Made("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", *tokenizer).value();
  EXPECT_EQ(own.end_of_turn(), end);
  const std::vector<ChatMessage> chat = {{Role::kUser, "x<|im_end|>"}, {Role::kAssistant, "y"}};
  const Conversation out = own.Encode(chat, nullptr).value();
  EXPECT_EQ(std::count(out.tokens.begin(), out.tokens.end(), end), 2);
}

// Others are read in messages, as transformers does: an answer may hold <think>.
TEST(OwnTemplate, TokensThatAreNotOfTurnsAreReadInMessages) {
  OrderedJson json =
      OrderedJson::parse(*ReadFile(std::string(SHOAL_TESTDATA) + "/qwen2.tokenizer.json"));
  OrderedJson think = json["added_tokens"][0];
  think.update({{"id", Tokenizer::Parse(json.dump(), "t").value()->vocabulary()},
                {"content", "<think>"},
                {"special", false}});
  json["added_tokens"].push_back(think);
  const auto tokenizer = Tokenizer::Parse(json.dump(), "think").value();
  const std::vector<ChatMessage> chat = {{Role::kUser, "x"}, {Role::kAssistant, "<think>y"}};
  for (const auto& [before, behind] :
       {std::pair("<|im_start|>", "<|im_end|>"), std::pair("", "")}) {
    const auto own = Made(
        fmt::format("{{% for m in messages %}}{{{{ '{0}' + m.role + '\n' + m.content + '{1}\n' }}}}"
                    "{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '{0}assistant\n<think>\n' "
                    "}}}}{{% endif %}}",
                    before, behind),
        *tokenizer);
    ASSERT_OK(own.status());
    const Ids tokens = own->Encode(chat, nullptr).value().tokens;
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), *tokenizer->TokenToId("<think>")), 1);
  }
}

TEST(OwnTemplate, WhatATemplateLeavesOutIsCounted) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto own = Made(
                       "{% for m in messages %}{{ '<|im_start|>' + m.role }}{% for part in "
                       "m.content %}{{ part.text }}{% endfor %}<|im_end|>{% endfor %}",
                       *tokenizer)
                       .value();
  std::vector<ChatMessage> chat = {{Role::kUser, "x"}, {Role::kAssistant, "y"}};
  EXPECT_EQ(own.Encode(chat, nullptr)->silent, 1);
  chat[1].more = OrderedJson::parse(R"({"content": [{"type": "text", "text": "y"}]})");
  const Conversation out = own.Encode(chat, nullptr).value();
  EXPECT_EQ(out.silent, 0);
  EXPECT_THAT(Learnt(out, *tokenizer), ElementsAre("y<|im_end|>"));
}

TEST(OwnTemplate, TheDayIsTheOneThatIsGiven) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto made = [&](const std::string& text, const std::string& day) {
    TemplateChoice choice({.name = "m", .text = text, .tool_text = "", .tokens = {}});
    choice.day = day;
    return ChatTemplate::Create(choice, *tokenizer, {});
  };
  const auto dated = made("{{ strftime_now('%d %b %Y %H:%M %A %j') }}", "2024-07-26");
  ASSERT_OK(dated.status());
  EXPECT_EQ(dated->day(), "2024-07-26");
  EXPECT_EQ(tokenizer->Decode(dated->Encode({}).value().tokens), "26 Jul 2024 00:00 Friday 208");
  EXPECT_EQ(made("x", "2024-07-26")->day(), "") << "it tells none";
  EXPECT_REFUSED(made("x", "26.7.").status(), "'26.7.' is no day; write it as 2026-11-27");
}

TEST(OwnTemplate, ArgumentsAreVariables) {
  const auto tokenizer = TokenizerOf("qwen2");
  const auto made = [&](const std::map<std::string, std::string>& arguments) {
    TemplateChoice choice({.name = "m",
                           .text = "{{ 'thinks' if think is not false }} {{ tone }} {{ depth + 1 "
                                   "if depth else '' }}",
                           .tool_text = "",
                           .tokens = {}});
    choice.arguments = arguments;
    return ChatTemplate::Create(choice, *tokenizer, {});
  };
  const auto text = [&](const std::map<std::string, std::string>& arguments) {
    return tokenizer->Decode(made(arguments)->Encode({}).value().tokens);
  };
  EXPECT_EQ(text({}), "thinks  ");
  EXPECT_EQ(text({{"think", "false"}}), "  ");
  EXPECT_EQ(text({{"think", "true"}, {"tone", "[dry"}, {"depth", "2"}}), "thinks [dry 3");
  EXPECT_NE(made({{"tone", "dry"}})->Signature(), made({{"tone", "wry"}})->Signature());
  const Ids ids = made({{"tone", "<|im_end|>"}})->Encode({}).value().tokens;
  EXPECT_EQ(std::ranges::count(ids, tokenizer->TokenToId("<|im_end|>").value()), 0);
  EXPECT_REFUSED(made({{"ton", "x"}}).status(), "template_arguments: m has no variable 'ton'");
  EXPECT_REFUSED(made({{"messages", "x"}}).status(), "'messages' is what every template is given");
  TemplateChoice ours = plan::Template::kChatML;
  ours.arguments = {{"think", "false"}};
  EXPECT_REFUSED(ChatTemplate::Create(ours, *tokenizer, {}).status(),
                 "template chatml has no variable 'think'");
}

TEST(OwnTemplate, BrokenOnesAreNamedAtOnce) {
  const auto tokenizer = TokenizerOf("qwen2");
  EXPECT_REFUSED(Made("\n{% fo", *tokenizer).status(), "m/chat_template.jinja:2");
  EXPECT_REFUSED(Made("{{ messages | xmlattr }}", *tokenizer).status(),
                 "filter 'xmlattr' is not supported");
}

}  // namespace
}  // namespace shoal::worker
