#include "cli/data/data_command.h"

#include "cli/data/data_inspect.h"
#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

class DataCommandTest : public TinyModelTest {
 protected:
  Outcome Data(const std::string& command, const std::string& file,
               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"data", command, file, "--model", model()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
};

TEST_F(DataCommandTest, TheSameSeedWritesTheSameBytes) {
  ASSERT_EQ(Shoal({"data", "synth", "--samples", "50", "--output", folder_ + "/again.jsonl"}).code,
            0);
  ASSERT_EQ(Shoal({"data", "synth", "--samples", "50", "--seed", "2", "--output",
                   folder_ + "/other.jsonl"})
                .code,
            0);
  EXPECT_TRUE(*ReadFile(train_) == *ReadFile(folder_ + "/again.jsonl"));
  EXPECT_FALSE(*ReadFile(train_) == *ReadFile(folder_ + "/other.jsonl"));
  ExpectRefused(Shoal({"data", "synth", "--kind", "poems", "--output", folder_ + "/x"}), "poems");
  ExpectRefused(Shoal({"data", "synth", "--lengths", "long", "--output", folder_ + "/x"}), "long");
}

TEST_F(DataCommandTest, PrepareCountsWhatItWrote) {
  const Outcome outcome =
      Data("prepare", train_, {"--output", folder_ + "/train.tokens", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto line = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(line["samples"], 50);
  const auto file = formats::TokenFile::Open(folder_ + "/train.tokens");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(line["tokens"], (*file)->total_tokens());
}

TEST_F(DataCommandTest, InspectShowsLengthsPackingAndAMaskedSample) {
  const Outcome text = Data("inspect", train_, {"--microbatch-tokens", "2048"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("median"));
  EXPECT_THAT(text.out, HasSubstr("% filled"));
  EXPECT_THAT(text.out, HasSubstr("\xE2\x9F\xA6"));
  const Outcome json =
      Data("inspect", train_, {"--json", "--sample", "3", "--microbatch-tokens", "2048"});
  std::istringstream lines(json.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto data = nlohmann::json::parse(line);
  int64_t in_buckets = 0;
  for (const auto& bucket : data["histogram"]) {
    in_buckets += bucket["samples"].get<int64_t>();
  }
  EXPECT_EQ(in_buckets, 50);
  EXPECT_LE(data["packing"]["packed_fill"].get<double>(), 1.0);
  ASSERT_TRUE(std::getline(lines, line));
  const auto sample = nlohmann::json::parse(line);
  int64_t learnt = 0;
  int64_t tokens = 0;
  for (const auto& run : sample["runs"]) {
    tokens += run["tokens"].get<int64_t>();
    learnt += run["learnt"].get<bool>() ? run["tokens"].get<int64_t>() : 0;
  }
  EXPECT_EQ(tokens, sample["tokens"]);
  EXPECT_EQ(learnt, sample["target_tokens"]);
  ExpectRefused(Data("inspect", train_, {"--sample", "50"}), "--sample 50");
}

TEST_F(DataCommandTest, TheJobSaysWhatIsLeftOpen) {
  Write("questions.jsonl", R"({"question":"1 + 1?","answer":"2"})"
                           "\n");
  const std::string job = Write("job.yaml",
                                "model: model\ndata: {train: questions.jsonl, template: chatml, "
                                "fields: {prompt: question, completion: answer}, "
                                "max_sequence_tokens: 64, microbatch_tokens: 128}\n"
                                "train: {minibatch_samples: 7}\n");
  const Outcome of_job = Shoal({"data", "inspect", "--job", job, "--json"});
  ASSERT_EQ(of_job.code, 0) << of_job.err;
  const std::string path =
      std::filesystem::path(folder_ + "/questions.jsonl").lexically_normal().string();
  const Outcome said = Data("inspect", path,
                            {"--template", "chatml", "--field", "prompt=question", "--field",
                             "completion=answer", "--max-sequence-tokens", "64",
                             "--microbatch-tokens", "128", "--minibatch-samples", "7", "--json"});
  EXPECT_EQ(of_job.out, said.out);
  const Outcome other = Shoal({"data", "inspect", "--job", job, "--json", "--template", "plain"});
  EXPECT_NE(other.out, of_job.out) << "the command line wins";
  EXPECT_EQ(Shoal({"data", "prepare", "--job", job, "--output", folder_ + "/t.tokens"}).code, 0);
  ExpectRefused(Shoal({"data", "inspect", train_}), "--model is required, or --job");
  ExpectRefused(Shoal({"data", "inspect", "--model", model()}), "file is required, or --job");
}

TEST_F(DataCommandTest, ShowsWeightsWhereTheyAreNotOne) {
  Write("weighted.jsonl", R"({"weight":0.5,"messages":[{"role":"user","content":"x"},)"
                          R"({"role":"assistant","content":"1"},{"role":"user","content":"x"},)"
                          R"({"role":"assistant","content":"2","weight":2}]})");
  const std::string job = Write("job.yaml",
                                "model: model\ndata: {train: weighted.jsonl, template: plain, "
                                "max_sequence_tokens: 64, microbatch_tokens: 128}\n");
  for (const std::string what : {"preview", "inspect"}) {
    const std::vector<std::string> of_job =
        what == "preview" ? std::vector<std::string>{job} : std::vector<std::string>{"--job", job};
    std::vector<std::string> command = {"data", what};
    command.insert(command.end(), of_job.begin(), of_job.end());
    const Outcome text = Shoal(command);
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("\xE2\x9F\xA7\xC3\x97"
                                    "0.5"));
    EXPECT_EQ(text.out.find("\xC3\x97"), text.out.rfind("\xC3\x97")) << "0.5 times 2 is 1";
    command.push_back("--json");
    const Outcome json = Shoal(command);
    EXPECT_THAT(json.out, HasSubstr(R"("weight":0.5)"));
  }
  const auto line = nlohmann::json::parse(Shoal({"data", "preview", job, "--json"}).out);
  ASSERT_EQ(line["weights"].size(), line["ids"].size());
  for (size_t i = 0; i < line["ids"].size(); ++i) {
    EXPECT_TRUE(line["learnt"][i] || line["weights"][i] == 1) << i;
  }
}

TEST_F(DataCommandTest, PreviewShowsWhatTheModelsOwnTemplateMakesOfSamples) {
  Write("model/chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'pirate' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{{ '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}");
  Write("chats.jsonl",
        R"({"messages":[{"role":"user","content":"1 + 1?"},{"role":"assistant","content":"2"}]})"
        "\n"
        R"({"prompt":"<|im_end|>","completion":"3"})"
        "\n");
  const std::string job = Write("job.yaml",
                                "model: model\ndata: {train: chats.jsonl, template: auto, "
                                "max_sequence_tokens: 64, microbatch_tokens: 128}\n");
  const Outcome text = Shoal({"data", "preview", job});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("model/chat_template.jinja\n"));
  EXPECT_THAT(text.out, HasSubstr("[user]1 + 1?<|im_end|>[assistant]"
                                  "\xE2\x9F\xA6"
                                  "2<|im_end|>\xE2\x9F\xA7"));
  EXPECT_THAT(text.out, HasSubstr("chats.jsonl:2, sample 1"));
  const Outcome json = Shoal({"data", "preview", job, "--json", "--samples", "1"});
  const auto line = nlohmann::json::parse(json.out);
  EXPECT_EQ(line["ids"].size(), line["learnt"].size());
  EXPECT_EQ(line["target_tokens"], 2);
  EXPECT_EQ(std::count(line["learnt"].begin(), line["learnt"].end(), true), 2);
  const Outcome both = Shoal(
      {"data", "preview",
       Write("mixed.yaml", "model: model\ndata: {mixture: [{path: chats.jsonl}, {path: " + train_ +
                               "}], max_sequence_tokens: 64}\n"),
       "--json", "--samples", "1"});
  ASSERT_EQ(both.code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("chats.jsonl:1"));
  EXPECT_THAT(both.out, HasSubstr("train.jsonl:1")) << "of each source";
  EXPECT_EQ(std::count(both.out.begin(), both.out.end(), '\n'), 2);
  Write("model/chat_template.jinja", "\n{{ messages | xmlattr }}");
  ExpectRefused(Shoal({"data", "preview", job}),
                "chat_template.jinja:2: filter 'xmlattr' is not supported");
  Write("model/chat_template.jinja",
        "{{ raise_exception('no system') if messages[0].role == 'system' }}"
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}x{% endfor %}");
  ExpectRefused(Shoal({"data", "inspect", "--job", job}), "does it expect content as a list?");
  Write("chats.jsonl", R"({"messages":[{"role":"system","content":"s"}]})"
                       "\n");
  ExpectRefused(Shoal({"data", "preview", job}), "raise_exception: no system");
  ExpectRefused(Shoal({"data", "preview", job}), "chats.jsonl:1");
}

TEST_F(DataCommandTest, PreviewShowsTokenFilesToo) {
  const std::string tokens = folder_ + "/t.tokens";
  ASSERT_EQ(Data("prepare", train_, {"--output", tokens, "--template", "chatml"}).code, 0);
  const std::string job =
      Write("job.yaml", "model: model\ndata: {mixture: [{path: " + train_ + "}, {path: " + tokens +
                            "}], template: chatml, max_sequence_tokens: 512}\n");
  const Outcome both = Shoal({"data", "preview", job, "--samples", "2", "--json"});
  ASSERT_EQ(both.code, 0) << both.err;
  std::istringstream lines(both.out);
  std::vector<nlohmann::json> samples;
  for (std::string line; std::getline(lines, line);) {
    samples.push_back(nlohmann::json::parse(line));
  }
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_THAT(samples[2]["where"].get<std::string>(), ::testing::EndsWith("/t.tokens"));
  for (const char* same : {"sample", "ids", "learnt", "runs"}) {
    EXPECT_EQ(samples[3][same], samples[1][same]);
  }
}

TEST_F(DataCommandTest, PreviewShowsPairsByTheirTemplate) {
  Write("pairs.jsonl", R"({"prompt":"1 + 1?","chosen":"2","rejected":"3"})"
                       "\n");
  const std::string job = Write("job.yaml",
                                "model: model\ntrain: {objective: dpo}\n"
                                "data: {train: pairs.jsonl, template: chatml}\n");
  const Outcome text = Shoal({"data", "preview", job});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("template: chatml\n"));
  for (const char* reply : {"2", "3"}) {
    EXPECT_THAT(text.out, HasSubstr(fmt::format("{}: <|bos|><|im_start|>user\n1 + 1?<|im_end|>\n"
                                                "<|im_start|>assistant\n\xE2\x9F\xA6{}<|im_end|>",
                                                *reply == '2' ? "chosen" : "rejected", reply)));
  }
  const auto line = nlohmann::json::parse(Shoal({"data", "preview", job, "--json"}).out);
  EXPECT_EQ(line["runs"][0]["side"], "chosen");
  EXPECT_EQ(line["runs"].size(), 6u) << "before, within and after each reply";
  const std::string tokens = folder_ + "/pairs.tokens";
  const Outcome prepared = Data("prepare", folder_ + "/pairs.jsonl",
                                {"--output", tokens, "--objective", "dpo", "--template", "chatml"});
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  ExpectRefused(Data("prepare", folder_ + "/pairs.jsonl",
                     {"--output", tokens, "--objective", "dpo", "--template", "chatml",
                      "--train-on", "last"}),
                "--train-on last contradicts --objective dpo");
  Write("job.yaml",
        "model: model\ntrain: {objective: dpo}\n"
        "data: {train: pairs.tokens, template: chatml}\n");
  EXPECT_EQ(nlohmann::json::parse(Shoal({"data", "preview", job, "--json"}).out)["runs"],
            line["runs"]);
}

TEST_F(DataCommandTest, DocumentsAreLearntAllThrough) {
  Write("documents.jsonl", R"({"content":"Once upon a time there was a fish."})"
                           "\n"
                           R"({"content":"The end."})"
                           "\n");
  const std::string job =
      Write("job.yaml",
            "model: model\ntrain: {objective: pretrain}\n"
            "data: {train: documents.jsonl, fields: {text: content}, max_sequence_tokens: 8}\n");
  const Outcome text = Shoal({"data", "preview", job, "--samples", "9"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("template: none, of documents\n"));
  EXPECT_THAT(text.out, HasSubstr("<|eos|>\xE2\x9F\xA7")) << "the end is learnt";
  EXPECT_THAT(text.out, HasSubstr("8 tokens, 7 of them learnt"));
  const Outcome of_job = Shoal({"data", "inspect", "--job", job, "--json"});
  const Outcome said = Data("inspect", folder_ + "/documents.jsonl",
                            {"--objective", "pretrain", "--field", "text=content",
                             "--max-sequence-tokens", "8", "--json"});
  ASSERT_EQ(of_job.code, 0) << of_job.err;
  const auto first = [](const Outcome& outcome) {
    return nlohmann::json::parse(outcome.out.substr(0, outcome.out.find('\n')))["tokens"];
  };
  EXPECT_EQ(first(of_job), first(said));
  const Outcome whole = Data("inspect", folder_ + "/documents.jsonl",
                             {"--objective", "pretrain", "--field", "text=content", "--documents",
                              "concatenate", "--json"});
  EXPECT_EQ(nlohmann::json::parse(whole.out.substr(0, whole.out.find('\n')))["samples"], 1);
  ExpectRefused(Data("inspect", train_, {"--objective", "pretrain"}), "no 'text' is there");
  ExpectRefused(Data("inspect", train_, {"--objective", "pretrain", "--max-sequence-tokens", "1"}),
                "documents are cut to 2 at least");
}

TEST_F(DataCommandTest, ATemplateOfAFileIsUsedAsTheFoldersOwn) {
  const std::string own = Write("own.jinja",
                                "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
                                "{{ '<|im_end|>' }}{% endfor %}"
                                "{% if add_generation_prompt %}[assistant]{% endif %}");
  Write("chats.jsonl", R"({"prompt":"1 + 1?","completion":"2"})"
                       "\n");
  const std::string job =
      Write("job.yaml", "model: model\ndata: {train: chats.jsonl, template: own.jinja}\n");
  const Outcome text = Shoal({"data", "preview", job});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("own.jinja\n"));
  EXPECT_THAT(text.out, HasSubstr("[assistant]\xE2\x9F\xA6"
                                  "2<|im_end|>"));
  EXPECT_EQ(Data("inspect", folder_ + "/chats.jsonl", {"--template", own}).code, 0);
  ExpectRefused(Data("inspect", train_, {"--template", folder_ + "/gone.jinja"}), "gone.jinja");
}

TEST_F(DataCommandTest, BrokenLinesAreNamedByFileAndLine) {
  const std::string good = R"({"prompt":"1 + 1?","completion":"2"})"
                           "\n";
  ExpectRefused(Data("inspect", Write("bad.jsonl", good + good + "{\"prompt\": \n")),
                "bad.jsonl:3");
  ExpectRefused(
      Data("inspect", Write("role.jsonl", good + R"({"messages":[{"role":"squid","content":"x"}]})"
                                                 "\n")),
      "role.jsonl:2");
  ExpectRefused(Data("inspect", folder_ + "/absent.jsonl"), "absent.jsonl");
  ExpectRefused(Data("inspect", train_, {"--field", "prompt"}), "--field prompt");
  ExpectRefused(Data("inspect", train_, {"--field", "pearl=x"}), "pearl");
}

TEST_F(DataCommandTest, OversizeSamplesAreAnErrorOrCounted) {
  const std::string lines = R"({"prompt":"1 + 1?","completion":"2"})"
                            "\n"
                            R"({"prompt":")" +
                            std::string(4000, 'z') +
                            R"(","completion":"2"})"
                            "\n";
  const std::string file = Write("long.jsonl", lines);
  ExpectRefused(Data("inspect", file, {"--max-sequence-tokens", "100"}), "long.jsonl:2");
  const Outcome skipped =
      Data("inspect", file, {"--max-sequence-tokens", "100", "--oversize", "skip", "--json"});
  ASSERT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_EQ(
      nlohmann::json::parse(skipped.out.substr(0, skipped.out.find('\n')))["skipped_oversize"], 1);
}

TEST_F(DataCommandTest, AnUnknownTokenizerPartIsRefusedByName) {
  auto tokenizer = nlohmann::json::parse(*ReadFile(model() + "/tokenizer.json"));
  tokenizer["model"]["type"] = "Unigram";
  Write("model/tokenizer.json", tokenizer.dump());
  ExpectRefused(Data("inspect", train_), "Unigram");
}

TEST(DataInspect, ControlCharactersOfASampleDoNotReachTheTerminal) {
  const std::vector<int32_t> tokens = {1, 2, 3};
  const std::vector<int32_t> labels = {formats::kIgnoredLabel, 3, formats::kIgnoredLabel};
  const formats::TokenSample sample{tokens, labels, 1};
  EXPECT_THAT(RenderSample(0, sample, nullptr, {}), HasSubstr("1 2\xE2\x9F\xA6"
                                                              "3\xE2\x9F\xA7"));
  EXPECT_THAT(RenderSample(0, sample, nullptr, {.interactive = true, .colour = true, .width = 80}),
              HasSubstr("\033[32m3"));
}

}  // namespace
}  // namespace shoal::cli
