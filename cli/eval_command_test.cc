#include "cli/eval_command.h"

#include <cmath>

#include "cli/testing/command_line.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

class EvalCommandTest : public TinyModelTest {
 protected:
  Outcome Eval(const std::string& data, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"eval",       "--model", model(),     "--data", data,
                                          "--template", "chatml",  "--compute", "fp32"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
  nlohmann::json EvalJson(const std::string& data, std::vector<std::string> more) const {
    more.emplace_back("--json");
    const Outcome outcome = Eval(data, more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out, nullptr, false);
  }
  // Returns the model's own reply to `prompt`.
  std::string Reply(const std::string& prompt) const {
    const Outcome outcome =
        Shoal({"generate", "--model", model(), "--chat", "--template", "chatml", "--prompt", prompt,
               "--max-new-tokens", "4", "--compute", "fp32", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out, nullptr, false)["text"];
  }
};

TEST_F(EvalCommandTest, AFreshModelKnowsNothing) {
  const auto line = EvalJson(train_, {"--answers", "0"});
  EXPECT_EQ(line["event"], "eval");
  EXPECT_EQ(line["samples"].get<int64_t>() + line["skipped"].get<int64_t>(), 50);
  const double loss = line["loss"];
  EXPECT_NEAR(loss, std::log(300.0), 0.1) << "every token of the vocabulary is as likely";
  EXPECT_NEAR(line["perplexity"].get<double>(), std::exp(loss), 1e-9 * std::exp(loss));
  EXPECT_EQ(line["answers_checked"], 0);
  EXPECT_TRUE(line["exact_match"].is_null());
}

TEST_F(EvalCommandTest, TheJobSaysWhatIsLeftOpen) {
  const std::string job =
      Write("job.yaml",
            "model: model\ndata: {train: train.jsonl, template: chatml, max_sequence_tokens: 256, "
            "oversize: skip, validation: {path: train.jsonl}}\ntrain: {compute: fp32}\n"
            "checkpoint: {directory: out}\n");
  const Outcome of_job = Shoal({"eval", "--job", job, "--answers", "0", "--json"});
  ASSERT_EQ(of_job.code, 0) << of_job.err;
  const Outcome said = Eval(
      train_, {"--max-sequence-tokens", "256", "--oversize", "skip", "--answers", "0", "--json"});
  EXPECT_EQ(of_job.out, said.out);
  std::filesystem::create_directories(folder_ + "/out");
  std::filesystem::rename(model(), folder_ + "/out/huggingface");
  EXPECT_EQ(Shoal({"eval", "--job", job, "--answers", "0", "--json"}).out, said.out)
      << "the model that the job has left";
  ExpectRefused(Shoal({"eval", "--model", model()}), "--data is required");
}

TEST_F(EvalCommandTest, HowSamplesArePackedDoesNotChangeTheLoss) {
  const auto together = EvalJson(train_, {"--answers", "0", "--limit", "20"});
  const auto alone =
      EvalJson(train_, {"--answers", "0", "--limit", "20", "--microbatch-tokens", "1"});
  EXPECT_EQ(together["samples"], 20);
  EXPECT_EQ(together["target_tokens"], alone["target_tokens"]);
  EXPECT_NEAR(together["loss"], alone["loss"], 1e-5);
  EXPECT_LT(together["target_tokens"],
            EvalJson(train_, {"--answers", "0", "--limit", "30"})["target_tokens"]);
}

TEST_F(EvalCommandTest, RepliesAreHeldAgainstTheAnswers) {
  std::string lines;
  for (const std::string& answer : {Reply("Sort 3 1."), std::string("no such pearl")}) {
    lines += nlohmann::json({{"messages",
                              {{{"role", "user"}, {"content", "Sort 3 1."}},
                               {{"role", "assistant"}, {"content", "1 3"}}}},
                             {"answer", answer}})
                 .dump() +
             "\n";
  }
  const std::string data = Write("answers.jsonl", lines);
  const auto both = EvalJson(data, {"--max-new-tokens", "4"});
  EXPECT_EQ(both["answers_checked"], 2);
  EXPECT_EQ(both["exact_match"], 0.5);
  EXPECT_EQ(EvalJson(data, {"--max-new-tokens", "4", "--answers", "1"})["exact_match"], 1.0);
  const Outcome text = Eval(data, {"--max-new-tokens", "4"});
  EXPECT_THAT(text.out, HasSubstr("exact match: 1 of 2 answers (50.0%)"));
  EXPECT_THAT(text.out, HasSubstr("over 2 samples"));
}

TEST_F(EvalCommandTest, SamplesThatAreTooLongAreCounted) {
  const auto line = EvalJson(train_, {"--answers", "0", "--max-sequence-tokens", "100"});
  EXPECT_GT(line["skipped"], 0);
  EXPECT_EQ(line["samples"].get<int64_t>() + line["skipped"].get<int64_t>(), 50);
  ExpectRefused(Eval(train_, {"--max-sequence-tokens", "100", "--oversize", "error"}),
                "train.jsonl:");
}

TEST_F(EvalCommandTest, BadInputIsRefusedInOneLine) {
  ExpectRefused(Eval(folder_ + "/absent.jsonl", {}), "absent.jsonl");
  ExpectRefused(Eval(Write("bad.jsonl", "{broken\n"), {}), "bad.jsonl:1");
  ExpectRefused(Eval(train_, {"--compute", "int3"}), "--compute");
  ExpectRefused(Shoal({"eval", "--model", folder_ + "/absent", "--data", train_}), "absent");
}

}  // namespace
}  // namespace shoal::cli
