#include "cli/plan/pipeline_report.h"

#include "cli/testing/command_line.h"
#include "core/base/file.h"

namespace shoal::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class PipelineReportTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    job_ = Write("job.yaml", Job("2"));
  }
  static std::string Job(const std::string& stages) {
    return "model: model\n"
           "data: {train: train.jsonl, template: chatml, max_sequence_tokens: 512, "
           "microbatch_tokens: 512, oversize: skip}\n"
           "train: {steps: 5, minibatch_samples: 16, compute: fp32}\n"
           "cluster:\n"
           "  local: {servers: 1, workers: 4}\n"
           "  pipeline:\n"
           "    stages: " +
           stages +
           "\n"
           "    pace: {forward_flops: 1e9, backward_input_flops: 1e9, "
           "backward_weights_flops: 1e9, offload_bytes_per_second: 1e9, "
           "reload_bytes_per_second: 1e9}\n";
  }
  Outcome Plan(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"plan", job_});
    return Shoal(more);
  }
  std::vector<json> Candidates(std::vector<std::string> more = {}) const {
    more.emplace_back("--json");
    const Outcome outcome = Plan(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<json> candidates;
    for (const json& line : JsonLines(outcome.out)) {
      if (line["event"] == "pipeline_candidate") {
        candidates.push_back(line);
      }
    }
    return candidates;
  }
  std::string job_;
};

TEST_F(PipelineReportTest, EachCandidateHasAVerdictAndOneIsChosen) {
  const std::vector<json> candidates = Candidates();
  ASSERT_GT(candidates.size(), 1u);
  EXPECT_TRUE(candidates[0]["chosen"].get<bool>());
  EXPECT_TRUE(candidates[0]["fits"].get<bool>());
  EXPECT_EQ(candidates[0]["device_bytes"].size(), 2u);
  for (size_t i = 0; i < candidates.size(); ++i) {
    EXPECT_FALSE(candidates[i]["verdict"].get<std::string>().empty());
    EXPECT_EQ(candidates[i]["chosen"].get<bool>(), i == 0);
  }
}

TEST_F(PipelineReportTest, WhatTheJobSaysIsAllThatIsLookedAt) {
  for (const json& candidate : Candidates({"--set", "cluster.pipeline.schedule=1F1B", "--set",
                                           "cluster.pipeline.recompute=full"})) {
    EXPECT_EQ(candidate["schedule"], "1F1B");
    EXPECT_EQ(candidate["recompute"], "full");
  }
}

TEST_F(PipelineReportTest, ABudgetThatNothingFitsIsRefusedInOneLine) {
  const Outcome outcome = Plan(
      {"--set", "cluster.pipeline.device_memory=4KiB", "--set", "cluster.pipeline.schedule=1F1B"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("stage"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

TEST_F(PipelineReportTest, OffloadThatMovesNothingIsToldInALine) {
  const auto with = [&](const std::string& chunks, const std::string& offload) {
    const Outcome outcome =
        Plan({"--set", "cluster.pipeline.stages=1", "--set", "cluster.pipeline.chunks=" + chunks,
              "--set", "train.offload=" + offload, "--set", "train.recompute=light"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(with("2", "full"),
              HasSubstr("warning: train.offload moves nothing here: of 1 stage"));
  EXPECT_EQ(with("4", "full"), "");
  EXPECT_EQ(with("2", "none"), "");
}

TEST_F(PipelineReportTest, ABudgetIsShown) {
  EXPECT_THAT(Plan({"--set", "cluster.pipeline.device_memory=100MiB"}).out,
              HasSubstr("activations of a stage may take 100.0 MiB of its device"));
}

// Counts a stage's units and messages, not the whole model's.
TEST_F(PipelineReportTest, DoctorReckonsWithTheStages) {
  std::string text = Job("2");
  const std::string counts = "servers: 1, workers: 4";
  text.replace(text.find(counts), counts.size(), "servers: 8, workers: 2");
  const std::string job = Write("stages.yaml", text);
  int64_t most_of_a_stage = 0;
  for (const json& line : JsonLines(Shoal({"plan", job, "--json"}).out)) {
    if (line["event"] == "worker") {
      EXPECT_GT(line["messages_bytes"], 0);
      int64_t bytes = 0;
      for (const char* part : {"weights_bytes", "wire_bytes", "messages_bytes", "pushes_bytes"}) {
        bytes += line[part].get<int64_t>();
      }
      most_of_a_stage = std::max(most_of_a_stage, bytes);
    }
  }
  EXPECT_GT(most_of_a_stage, 0);
  for (const json& line : JsonLines(Shoal({"doctor", job, "--json"}).out)) {
    if (line["event"] == "rdma") {
      EXPECT_EQ(line["registered_bytes"], most_of_a_stage);
    }
  }
}

TEST_F(PipelineReportTest, TheChosenScheduleIsDrawn) {
  const std::string file = Write("schedule.svg", "");
  const Outcome outcome = Plan({"--draw", file});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("pipeline of 2 stages"));
  EXPECT_THAT(outcome.out, HasSubstr("pace, given"));
  const auto svg = ReadFile(file);
  ASSERT_TRUE(svg.ok()) << svg.status();
  EXPECT_THAT(*svg, HasSubstr("<title>forward chunk 0 microbatch 0"));
}

TEST_F(PipelineReportTest, WithoutAPipelineThereIsNothingToDraw) {
  const Outcome outcome = Plan({"--draw", "x.svg", "--set", "cluster.pipeline.stages=1"});
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("cluster.pipeline"));
}

}  // namespace
}  // namespace shoal::cli
