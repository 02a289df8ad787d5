#include "core/data/template_file.h"

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/chat_template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

class TemplateFileTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) {
    ASSERT_OK(WriteFileAtomically(folder_ / name, text));
  }
  std::optional<plan::Template> Own() {
    const auto own = TemplateIn(folder_.path());
    EXPECT_THAT(own.status(), IsOk());
    return own.value_or(std::nullopt);
  }

  const TemporaryFolder folder_;
};

TEST_F(TemplateFileTest, TheFoldersOwnIsKnownByTheTurnsItWrites) {
  EXPECT_EQ(Own(), std::nullopt) << "there is none";
  Put("tokenizer_config.json", R"({"chat_template": "{{ '<|start_header_id|>' }}"})");
  EXPECT_EQ(Own(), plan::Template::kLlama3);
  Put("tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "<|im_start|>"}]})");
  EXPECT_EQ(Own(), plan::Template::kChatML);
  Put("chat_template.jinja", "[INST] {{ messages[0]['content'] }} [/INST]");
  EXPECT_EQ(Own(), std::nullopt) << "the file comes first, and is none of ours";
  Put("tokenizer_config.json", "{");
  EXPECT_EQ(Own(), std::nullopt) << "not read beside it";
}

TEST_F(TemplateFileTest, WhatIsWrittenIsKnownAgain) {
  for (const plan::Template kind :
       {plan::Template::kPlain, plan::Template::kChatML, plan::Template::kLlama3}) {
    ASSERT_OK(WriteTemplate(folder_.path(), kind));
    EXPECT_EQ(Own(), kind);
    EXPECT_EQ(ChooseTemplate(folder_.path(), nullptr).value(), kind);
  }
  Put("chat_template.jinja", "{# mine #}{{ '<|im_start|>' }}");
  ASSERT_OK(WriteTemplate(folder_.path(), plan::Template::kChatML));
  EXPECT_THAT(*ReadFile(folder_ / "chat_template.jinja"), HasSubstr("mine"));
}

TEST_F(TemplateFileTest, WithoutOneTheTokensDecide) {
  EXPECT_EQ(ChooseTemplate(folder_.path(), nullptr).value(), plan::Template::kPlain);
  for (const auto& [name, kind] : std::initializer_list<std::pair<const char*, plan::Template>>{
           {"qwen2", plan::Template::kChatML},
           {"llama3", plan::Template::kLlama3},
           {"gpt2", plan::Template::kPlain}}) {
    const auto tokenizer =
        Tokenizer::Load(std::string(SHOAL_TESTDATA "/") + name + ".tokenizer.json").value();
    EXPECT_EQ(ChooseTemplate(folder_.path(), tokenizer.get()).value(), kind) << name;
  }
}

}  // namespace
}  // namespace shoal::worker
