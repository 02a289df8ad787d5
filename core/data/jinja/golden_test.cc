// The templates that TRL ships, against transformers: tests/references/make_templates.py.
#include <zlib.h>

#include <set>
#include <string>

#include "core/base/testing/status.h"
#include "core/data/jinja/targets.h"
#include "core/data/jinja/template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::jinja {
namespace {

using Json = nlohmann::ordered_json;

const Json& Goldens() {
  static const Json& goldens = *new Json([] {
    std::string text;
    const gzFile file = gzopen(SHOAL_REFERENCES "/templates.json.gz", "rb");
    char block[1 << 16];
    for (int got = gzread(file, block, sizeof(block)); got > 0;
         got = gzread(file, block, sizeof(block))) {
      text.append(block, static_cast<size_t>(got));
    }
    gzclose(file);
    return Json::parse(text);
  }());
  return goldens;
}

// What each message says is of its own source; its role is the template's.
Value Messages(const Json& list) {
  std::vector<Value> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    Json message = list[i];
    // transformers fills in all names of reasoning.
    if (message.contains("reasoning_content")) {
      message["thinking"] = message["reasoning_content"];
    }
    std::vector<std::pair<Text, Value>> items;
    for (const auto& [key, value] : message.items()) {
      const auto source = key == "role" ? Origin::kTemplate : static_cast<int32_t>(i) + 1;
      items.emplace_back(Text(key), Value::FromJson(value, source));
    }
    messages.push_back(MakeDict(std::move(items)).value());
  }
  return MakeList(std::move(messages)).value();
}

absl::StatusOr<Text> Render(const Template& chat_template, const Json& chat) {
  constexpr int32_t kOtherData = 1000;
  Variables variables = {{"tools", Value(None{})},
                         {"documents", Value(None{})},
                         {"add_generation_prompt", Value(false)}};
  for (const auto& [name, token] : Goldens()["tokens"].items()) {
    variables.emplace_back(name, Value::FromJson(token, Origin::kTemplate));
  }
  for (const auto& [name, value] : chat.items()) {
    variables.emplace_back(
        name, name == "messages" ? Messages(value) : Value::FromJson(value, kOtherData));
  }
  RenderOptions options;
  strptime(Goldens()["now"].get_ref<const std::string&>().c_str(), "%Y-%m-%d", &options.now);
  return chat_template.Render(variables, options);
}

std::vector<SpecialToken> Specials(const Text& text, const Json& names) {
  std::vector<SpecialToken> found;
  for (const TextRange& span : TemplateSpans(text)) {
    for (size_t at = span.begin; at < span.end;) {
      size_t longest = 0;
      for (const Json& name : names) {
        const auto& special = name.get_ref<const std::string&>();
        if (text.str().compare(at, special.size(), special) == 0 &&
            at + special.size() <= span.end) {
          longest = std::max(longest, special.size());
        }
      }
      if (longest > 0) {
        found.push_back({{at, at + longest}, false});
      }
      at += std::max<size_t>(longest, 1);
    }
  }
  return found;
}

std::string PromptOf(const Template& chat_template, const Json& chat) {
  Json probe = chat;
  probe["messages"] = Json::array();
  for (const Json& message : chat["messages"]) {
    const bool system = message["role"] == "system";
    if (message["role"] != "assistant") {
      probe["messages"].push_back(message);
      if (!system) {
        break;
      }
    }
  }
  const std::string without = Render(chat_template, probe)->str();
  probe["add_generation_prompt"] = true;
  const std::string with = Render(chat_template, probe)->str();
  const auto differ = std::mismatch(with.begin(), with.end(), without.begin(), without.end());
  return {differ.first, with.end()};
}

std::vector<std::string> Targets(const Template& chat_template, const Text& text, const Json& chat,
                                 const Json& specials) {
  std::vector<std::string> targets;
  std::vector<TextRange> spans = GenerationSpans(text);
  if (!chat_template.has_generation()) {
    const std::string prompt = PromptOf(chat_template, chat);
    for (size_t i = 0; i < chat["messages"].size(); ++i) {
      const auto span = MessageSpan(text, static_cast<int32_t>(i) + 1,
                                    Prompt::From(prompt, Specials(Text(prompt), specials)),
                                    Specials(text, specials));
      if (chat["messages"][i]["role"] == "assistant" && span.has_value()) {
        spans.push_back(*span);
      }
    }
  }
  for (const TextRange& span : spans) {
    targets.push_back(text.str().substr(span.begin, span.end - span.begin));
  }
  return targets;
}

// Calls look(template, its entry, golden, chat) for each golden render of each template.
template <typename Look>
void ForEachRender(Look look) {
  for (const Json& entry : Goldens()["templates"]) {
    const std::string name = entry["name"];
    const auto chat_template = Template::Parse(entry["template"].get<std::string>(), name);
    ASSERT_OK(chat_template.status());
    for (const Json& golden : entry["renders"]) {
      const std::string chat = golden["chat"];
      SCOPED_TRACE(name + " of " + chat);
      look(*chat_template, entry, golden, Goldens()["chats"][chat]);
    }
  }
}

TEST(JinjaGolden, RendersWhatTransformersDoes) {
  int equal = 0;
  ForEachRender([&](const Template& chat_template, const Json& /*entry*/, const Json& golden,
                    const Json& chat) {
    const auto text = Render(chat_template, chat);
    if (golden.contains("error")) {
      // Shoal writes the arguments of a tool call as JSON where a template wants text.
      if (golden["error"] == "can only concatenate str (not \"dict\") to str") {
        EXPECT_THAT(text->str(), ::testing::HasSubstr("{\"city\": \"Köln\", \"days\": [1, 2]"));
        return;
      }
      EXPECT_FALSE(text.ok()) << golden["error"] << "\n" << text->str();
      return;
    }
    ASSERT_OK(text.status());
    EXPECT_EQ(text->str(), golden["text"].get<std::string>());
    ++equal;
  });
  EXPECT_GT(equal, 900);
}

TEST(JinjaGolden, TheAssistantSaysWhatTheMarksFind) {
  int equal = 0;
  ForEachRender(
      [&](const Template& chat_template, const Json& entry, const Json& golden, const Json& chat) {
        if (!golden.contains("targets")) {
          return;
        }
        const auto text = Render(chat_template, chat);
        ASSERT_OK(text.status());
        EXPECT_EQ(Targets(chat_template, *text, chat, entry["specials"]),
                  golden["targets"].get<std::vector<std::string>>());
        ++equal;
      });
  EXPECT_GT(equal, 500);
}

}  // namespace
}  // namespace shoal::jinja
