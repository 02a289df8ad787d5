#include "cli/generate_command.h"

#include "cli/generated_text.h"
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

TEST_F(GenerateCommandTest, EndsBeforeAStopString) {
  const std::string whole = GenerateJson({"--max-new-tokens", "12"})["text"];
  ASSERT_GE(whole.size(), 4U);
  const std::string stop = whole.substr(whole.size() / 2, 2);
  const auto cut = GenerateJson({"--max-new-tokens", "12", "--stop", stop, "--stop", "never"});
  EXPECT_EQ(cut["text"], whole.substr(0, whole.find(stop)));
}

TEST_F(GenerateCommandTest, PromptsComeFromFilesAndTheInputToo) {
  const std::vector<std::string> generate = {
      "generate", "--model", model(), "--compute", "fp32", "--json", "--max-new-tokens", "6"};
  const auto run = [&](std::vector<std::string> more, const std::string& input) {
    more.insert(more.begin(), generate.begin(), generate.end());
    const Outcome outcome = Shoal(more, input);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<std::pair<std::string, std::string>> texts;
    for (const nlohmann::json& line : JsonLines(outcome.out)) {
      texts.emplace_back(line["prompt"], line["text"]);
    }
    return texts;
  };
  const auto two = run({"--prompt", "Sort 3 1", "--prompt", "What is 2"}, "");
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(run({"--prompts", Write("prompts", "Sort 3 1\n\nWhat is 2\n")}, ""), two);
  EXPECT_EQ(run({"--prompts", "-"}, "Sort 3 1\nWhat is 2"), two);
  EXPECT_EQ(run({"--prompt", "-"}, "Sort 3 1").front(), two.front());
}

TEST_F(GenerateCommandTest, AConversationGoesOnFromItsTurns) {
  const std::vector<std::string> chat = {"generate", "--model",          model(),      "--compute",
                                         "fp32",     "--chat",           "--template", "chatml",
                                         "--json",   "--max-new-tokens", "4"};
  const auto lines = JsonLines(Shoal(chat, "Sort 3 1\nAnd 9 8\n").out);
  ASSERT_EQ(lines.size(), 2U);
  std::vector<std::string> alone = chat;
  alone.insert(alone.end(), {"--prompt", "And 9 8"});
  EXPECT_GT(lines[1]["prompt_tokens"].get<int>(),
            JsonLines(Shoal(alone).out).front()["prompt_tokens"].get<int>() + 4);
}

TEST(StopStrings, HoldBackWhatMayBeTheBeginningOfOne) {
  StopStrings stops({"###", "END", ""});
  EXPECT_EQ(stops.Add("a#"), "a");
  EXPECT_EQ(stops.Add("b"), "#b");
  EXPECT_EQ(stops.Add("c##E"), "c##");
  EXPECT_EQ(stops.Add("N"), "");
  EXPECT_EQ(stops.Add("X"), "ENX");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Add("dE"), "d");
  EXPECT_EQ(stops.Add("ND###"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Finish(), "");
  StopStrings unfinished({"###"});
  EXPECT_EQ(unfinished.Add("a##"), "a");
  EXPECT_EQ(unfinished.Finish(), "##");
}

TEST_F(GenerateCommandTest, BadInputIsRefusedInOneLine) {
  ExpectRefused(Shoal({"generate", "--model", model()}), "--prompt");
  ExpectRefused(Generate({"--prompts", "x"}), "--prompts");
  ExpectRefused(Shoal({"generate", "--model", model(), "--prompts", folder_ + "/absent"}),
                "--prompts: cannot open " + folder_ + "/absent");
  ExpectRefused(Shoal({"generate", "--model", folder_ + "/absent", "--prompts", folder_}),
                "--prompts");  // before the model is looked for
  ExpectRefused(Generate({"--top-p", "0"}), "--top-p");
  ExpectRefused(Shoal({"generate", "--model", folder_ + "/absent", "--prompt", "x"}), "absent");
  ExpectRefused(Generate({"--template", "pirate"}), "pirate");
  ExpectRefused(Generate({"--temperature", "-1"}), "--temperature");
  ExpectRefused(Generate({"--chat", "--template", "llama3"}), "template llama3 needs the token");
  std::filesystem::remove(model() + "/tokenizer.json");
  ExpectRefused(Generate({}), "tokenizer.json");
}

}  // namespace
}  // namespace shoal::cli
