#include "worker/data/inspect.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "common/file.h"
#include "common/random.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/data/prepare.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

class InspectTest : public ::testing::Test {
 protected:
  InspectTest()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("shoal-inspect-{}-{}", getpid(), SecureToken())) {}
  ~InspectTest() override {
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".jsonl");
  }
  std::unique_ptr<formats::TokenFile> WithLengths(const std::vector<int64_t>& lengths) {
    auto writer = formats::TokenFileWriter::Create(path_, 100, 7).value();
    for (const int64_t length : lengths) {
      std::vector<int32_t> labels(static_cast<size_t>(length), 5);
      labels.back() = formats::kIgnoredLabel;
      EXPECT_TRUE(writer->Add(std::vector<int32_t>(static_cast<size_t>(length), 5), labels).ok());
    }
    EXPECT_TRUE(writer->Finish().ok());
    return formats::TokenFile::Open(path_).value();
  }
  std::string path_;
};

TEST_F(InspectTest, Lengths) {
  const auto file = WithLengths({3, 4, 7, 7, 40});
  const LengthReport report = ReportLengths(*file);
  EXPECT_EQ(report.samples, 5);
  EXPECT_EQ(report.tokens, 61);
  EXPECT_EQ(report.targets, 56);
  EXPECT_EQ(report.shortest, 3);
  EXPECT_EQ(report.p50, 7);
  EXPECT_EQ(report.longest, 40);
  ASSERT_EQ(report.buckets.size(), 5u);  // 2-3, 4-7, 8-15, 16-31, 32-63
  EXPECT_EQ(report.buckets[1].samples, 3);
  EXPECT_EQ(report.buckets[2].samples, 0);
  EXPECT_EQ(report.buckets[4].tokens, 40);
  const std::string text = ToText(report, 80);
  EXPECT_THAT(text, HasSubstr("5 samples, 61 tokens, 56 of them targets (92%)"));
  EXPECT_THAT(text, HasSubstr("4 - 7"));
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    EXPECT_LE(end - at, 80u);
    at = end + 1;
  }
  EXPECT_EQ(ToJson(report)["buckets"][1]["samples"], 3);
}

TEST_F(InspectTest, Packing) {
  const auto file = WithLengths({50, 50, 50, 50});
  const PackingOptions options{
      .workers = 2, .microbatch_tokens = 100, .minibatch_samples = 4, .steps = 3};
  const PackingReport report = ReportPacking(*file, options, plan::TokenCost()).value();
  EXPECT_EQ(report.microbatches, 6);
  EXPECT_EQ(report.fewest_microbatches, 1);
  EXPECT_EQ(report.most_microbatches, 1);
  EXPECT_DOUBLE_EQ(report.fill, 1.0);
  EXPECT_DOUBLE_EQ(report.balance, 1.0);
  EXPECT_THAT(ToText(report, options),
              HasSubstr("2.0 microbatches a step (1 to 1 per worker), 100% full"));
  EXPECT_EQ(ToJson(report)["fill"], 1.0);
  EXPECT_FALSE(ReportPacking(*file, {.microbatch_tokens = 49}, plan::TokenCost()).ok());
}

TEST_F(InspectTest, ShowsTheMask) {
  const auto tokenizer =
      Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/llama2.tokenizer.json").value();
  const auto encoder =
      SampleEncoder::Create(tokenizer.get(), plan::Template::kPlain, {.bos = 1, .eos = 2}, 620)
          .value();
  ASSERT_TRUE(
      WriteFileAtomically(
          path_ + ".jsonl",
          R"({"messages":[{"role":"user","content":"Hi\u001b[31m"},{"role":"assistant","content":"Größe"},)"
          R"({"role":"user","content":"x"},{"role":"assistant","content":"y"}]})")
          .ok());
  ASSERT_TRUE(Prepare(path_ + ".jsonl", path_, encoder, {}).ok());
  const auto file = formats::TokenFile::Open(path_).value();
  const auto runs = ReportSample(*file, 0, tokenizer.get()).value();
  EXPECT_EQ(ToText(runs, false),
            "<s> User: Hi\\x1B[31m\nAssistant:[[ Größe</s>]]\nUser: x\nAssistant:[[ y</s>]]\n");
  EXPECT_THAT(ToText(runs, true), HasSubstr("\033[32;1m Größe</s>\033[0m"));
  int64_t targets = 0;
  for (const auto& run : ToJson(runs)) {
    targets += run["target"] ? run["tokens"].get<int64_t>() : 0;
  }
  EXPECT_EQ(targets, file->targets(0));
  EXPECT_FALSE(ReportSample(*file, 1, tokenizer.get()).ok());
  EXPECT_THAT(ToText(ReportSample(*file, 0, nullptr).value(), false), HasSubstr("[["));
}

}  // namespace
}  // namespace shoal::worker
