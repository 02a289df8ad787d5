#include "core/data/template_file.h"

#include <filesystem>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/chat_template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

class TemplateFileTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) {
    ASSERT_OK(WriteFileAtomically(folder_ / name, text));
  }
  // Its text, with that for tools behind a bar; empty if there is none.
  std::string Own() {
    const auto own = TemplateIn(folder_.path());
    EXPECT_THAT(own.status(), IsOk());
    return own.ok() && own->has_value() ? (*own)->text + "|" + (*own)->tool_text : "";
  }

  const TemporaryFolder folder_;
};

TEST_F(TemplateFileTest, TheFoldersOwnIsFoundWhereTransformersWritesIt) {
  EXPECT_EQ(Own(), "") << "there is none";
  Put("chat_template.json", R"({"chat_template": "four"})");
  EXPECT_EQ(Own(), "four|");
  Put("tokenizer_config.json", R"({"chat_template": "config", "bos_token": null})");
  EXPECT_EQ(Own(), "config|");
  Put("tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "named"}, {"name": "rag",
          "template": "x"}, {"name": "tool_use", "template": "tools"}],
          "eos_token": {"content": "</s>"}, "bos_token": "<s>", "pad_token": null})");
  EXPECT_EQ(Own(), "named|tools");
  EXPECT_EQ(TemplateIn(folder_.path()).value()->name, folder_ / "tokenizer_config.json (default)");
  EXPECT_EQ(TemplateIn(folder_.path()).value()->tool_name,
            folder_ / "tokenizer_config.json (tool_use)");
  EXPECT_THAT(TemplateIn(folder_.path()).value()->tokens,
              ::testing::ElementsAre(std::pair("bos_token", "<s>"), std::pair("eos_token", "</s>"),
                                     std::pair("pad_token", "")));
  Put("chat_template.jinja", "[INST] {{ messages[0]['content'] }} [/INST]");
  EXPECT_EQ(Own(), "[INST] {{ messages[0]['content'] }} [/INST]|") << "the file comes first";
  EXPECT_EQ(ChooseTemplate("auto", folder_.path(), nullptr)->kind, plan::Template::kAuto);
  Put("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  std::filesystem::remove(folder_ / "chat_template.jinja");
  EXPECT_REFUSED(TemplateIn(folder_.path()).status(), "tokenizer_config.json: chat_template");
}

TEST_F(TemplateFileTest, WhatIsWrittenIsKnownAgain) {
  Put("chat_template.jinja", "{# mine #}{{ '<|im_start|>' }}");
  for (const char* name : {"plain", "chatml", "llama3"}) {
    ASSERT_OK(WriteTemplate(folder_.path(), name).status());
    EXPECT_EQ(WrittenAs(TemplateIn(folder_.path()).value()->text), plan::TemplateNamed(name));
    EXPECT_EQ(ChooseTemplate("auto", folder_.path(), nullptr)->kind, plan::TemplateNamed(name));
  }
}

TEST_F(TemplateFileTest, WhatIsReplacedIsNamed) {
  EXPECT_EQ(WriteTemplate(folder_.path(), "chatml").value(), "") << "there was none";
  std::filesystem::remove(folder_ / "chat_template.jinja");
  Put("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(WriteTemplate(folder_.path(), "chatml").value(), folder_ / "tokenizer_config.json");
  EXPECT_EQ(WriteTemplate(folder_.path(), "chatml").value(), "") << "it is that one";
  ASSERT_OK(CreateDirectories(folder_ / "additional_chat_templates"));
  Put("additional_chat_templates/tool_use.jinja", "tools");
  Put("chat_template.jinja", "x");
  EXPECT_EQ(TemplateIn(folder_.path()).value()->tool_name,
            folder_ / "additional_chat_templates/tool_use.jinja");
  EXPECT_EQ(WriteTemplate(folder_.path(), "plain").value(), folder_ / "chat_template.jinja");
  EXPECT_EQ(TemplateIn(folder_.path()).value()->tool_text, "") << "it was of the other template";
}

TEST_F(TemplateFileTest, AFileIsATemplate) {
  Put("mine.jinja", "{{ bos_token }}mine");
  Put("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "config"})");
  const std::string path = folder_ / "mine.jinja";
  const auto choice = ChooseTemplate(path, folder_.path(), nullptr);
  ASSERT_OK(choice.status());
  EXPECT_EQ(choice->own.name, path);
  EXPECT_EQ(choice->own.text, "{{ bos_token }}mine");
  EXPECT_EQ(choice->own.tokens.at("bos_token"), "<s>");
  EXPECT_EQ(WriteTemplate(folder_.path(), path).value(), folder_ / "tokenizer_config.json");
  EXPECT_EQ(TemplateIn(folder_.path()).value()->text, "{{ bos_token }}mine");

  ASSERT_OK(WriteTemplate(folder_.path(), "llama3").status());
  EXPECT_EQ(ChooseTemplate(folder_ / "chat_template.jinja", folder_.path(), nullptr)->kind,
            plan::Template::kLlama3)
      << "ours in a file is ours";
  Put("empty.jinja", "");
  EXPECT_REFUSED(ChooseTemplate(folder_ / "empty.jinja", folder_.path(), nullptr).status(),
                 "empty.jinja: the template is empty");
  EXPECT_EQ(ChooseTemplate(folder_ / "gone.jinja", folder_.path(), nullptr).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(TemplateFileTest, WithoutOneTheTokensDecide) {
  EXPECT_EQ(ChooseTemplate("auto", folder_.path(), nullptr)->kind, plan::Template::kPlain);
  for (const auto& [name, kind] : std::initializer_list<std::pair<const char*, plan::Template>>{
           {"qwen2", plan::Template::kChatML},
           {"llama3", plan::Template::kLlama3},
           {"gpt2", plan::Template::kPlain}}) {
    const auto tokenizer =
        Tokenizer::Load(std::string(SHOAL_TESTDATA "/") + name + ".tokenizer.json").value();
    EXPECT_EQ(ChooseTemplate("auto", folder_.path(), tokenizer.get())->kind, kind) << name;
  }
}

}  // namespace
}  // namespace shoal::worker
