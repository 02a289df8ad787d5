#include "cli/generate_command.h"

#include "cli/testing/command_line.h"

namespace shoal::cli {
namespace {

class GenerateCommandTest : public TinyModelTest {
 protected:
  Outcome Generate(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"generate", "--model",   model(), "--prompt",
                                          "Sort 3 1", "--compute", "fp32"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
  nlohmann::json GenerateJson(std::vector<std::string> more) const {
    more.emplace_back("--json");
    const Outcome outcome = Generate(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out, nullptr, false);
  }
};

TEST_F(GenerateCommandTest, PrintsTheContinuationAlone) {
  const auto line = GenerateJson({"--max-new-tokens", "8"});
  EXPECT_EQ(line["event"], "generation");
  EXPECT_EQ(line["prompt"], "Sort 3 1");
  EXPECT_LE(line["tokens"], 8);
  EXPECT_GT(line["tokens"], 0) << "a fresh model rarely ends at once; this one does not";
  const Outcome text = Generate({"--max-new-tokens", "8"});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out, line["text"].get<std::string>() + "\n");
  EXPECT_EQ(text.err, "");
}

TEST_F(GenerateCommandTest, TheMostLikelyTokensDoNotDependOnHowManyAreWanted) {
  const std::string few = GenerateJson({"--max-new-tokens", "3"})["text"];
  const std::string more = GenerateJson({"--max-new-tokens", "9", "--seed", "5"})["text"];
  EXPECT_LT(few.size(), more.size());
  EXPECT_TRUE(more.starts_with(few)) << more;
}

TEST_F(GenerateCommandTest, TheSeedDecidesWhatIsSampled) {
  const auto sample = [&](const std::string& seed) {
    return GenerateJson({"--max-new-tokens", "16", "--temperature", "2", "--seed", seed})["text"];
  };
  EXPECT_EQ(sample("1"), sample("1"));
  EXPECT_NE(sample("1"), sample("2"));
}

TEST_F(GenerateCommandTest, AChatPromptGoesThroughTheTemplate) {
  const int64_t plain = GenerateJson({"--max-new-tokens", "1"})["prompt_tokens"];
  const int64_t chat =
      GenerateJson({"--max-new-tokens", "1", "--chat", "--template", "chatml"})["prompt_tokens"];
  EXPECT_GE(chat, plain + 3) << "the turn's marks and who speaks";
}

TEST_F(GenerateCommandTest, BadInputIsRefusedInOneLine) {
  ExpectRefused(Shoal({"generate", "--model", model()}), "--prompt");
  ExpectRefused(Shoal({"generate", "--model", folder_ + "/absent", "--prompt", "x"}), "absent");
  ExpectRefused(Generate({"--template", "pirate"}), "pirate");
  ExpectRefused(Generate({"--temperature", "-1"}), "--temperature");
  ExpectRefused(Generate({"--chat", "--template", "llama3"}), "template llama3 needs the token");
  std::filesystem::remove(model() + "/tokenizer.json");
  ExpectRefused(Generate({}), "tokenizer.json");
}

}  // namespace
}  // namespace shoal::cli
