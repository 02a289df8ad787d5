#include "cli/record/record_commands.h"

#include <filesystem>
#include <fstream>

#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "core/base/process/subprocess.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kJob = R"(model: /m
data: {{train: /d.jsonl}}
train: {{steps: 9, learning_rate: {}}}
cluster: {{local: {{servers: 1, workers: 1}}}}
)";

class RecordCommandsTest : public ::testing::Test {
 protected:
  // A run that was resumed from step 3 after it had got to 5, each loss `offset` higher from step
  // `from` on.
  std::string Write(const std::string& name, double offset = 0, int64_t from = 0,
                    const std::string& rate = "0.001") const {
    const std::string run = folder_ / name;
    std::filesystem::create_directories(run + "/record");
    std::ofstream lines(run + "/record/metrics.jsonl");
    const auto step = [&](int64_t n) {
      lines << fmt::format(
          R"({{"event":"step","time":{0},"step":{0},"loss":{1},"tokens_per_second":{2},)"
          R"("grad_norm":1.5,"learning_rate":0.1,"mfu":0.3,"idle_share":0.2,)"
          R"("time_shares":{{"compute":0.8,"get_wait":0.2}}}})"
          "\n",
          n, 4.0 / static_cast<double>(n) + (n >= from ? offset : 0), 100 * n);
    };
    lines << R"({"event":"start","time":0,"step":0})"
             "\n";
    for (int64_t n = 1; n <= 5; ++n) {
      step(n);
    }
    lines << R"({"event":"lost","time":6,"step":6,"member":"worker 1","reason":"gone"})"
             "\n"
          << R"({"event":"failed","time":6,"step":6,"message":"lost worker 1"})"
             "\n"
          << R"({"event":"resume","time":7,"step":3})"
             "\n";
    for (int64_t n = 4; n <= 9; ++n) {
      step(n);
    }
    lines << R"({"event":"checkpoint","time":9,"step":9,"error":"disk full"})"
             "\n"
          << R"({"event":"of a later release","time":9})"
             "\n"
          << R"({"event":"done","time":9,"step":9})"
             "\n"
          << R"({"event":"st)";  // cut short by a kill
    std::ofstream(run + "/record/job.yaml") << fmt::format(fmt::runtime(kJob), rate);
    return run;
  }
  const TemporaryFolder folder_;
};

TEST_F(RecordCommandsTest, AHistoryHasEachStepOnceAndWhatHappened) {
  const std::string run = Write("a");
  for (const std::string& path : {run, run + "/record", run + "/record/metrics.jsonl"}) {
    const auto history = ReadRunHistory(path);
    ASSERT_OK(history.status());
    std::vector<int64_t> steps;
    for (const RunHistory::Step& step : history->steps) {
      steps.push_back(step.step);
    }
    EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
    std::vector<std::string> marks;
    for (const RunHistory::Mark& mark : history->marks) {
      marks.push_back(mark.kind);
    }
    EXPECT_THAT(marks, ElementsAre("lost", "failed", "resume", "failed checkpoint"));
    EXPECT_EQ(history->end, "done");
    EXPECT_TRUE(history->job.has_value());
  }
}

TEST_F(RecordCommandsTest, AMalformedLineIsNamed) {
  const std::string file = folder_ / "metrics.jsonl";
  for (const std::string line :
       {"{", "[1]", "{}", R"({"event":3})", R"({"event":"step","step":"x"})"}) {
    std::ofstream(file) << R"({"event":"start"})"
                        << "\n"
                        << line << "\n";
    EXPECT_THAT(std::string(Message(ReadRunHistory(file).status())), HasSubstr(file + ":2"))
        << line;
  }
  EXPECT_THAT(std::string(Message(ReadRunHistory(folder_.path() + "/none").status())),
              HasSubstr("there is no record of a run"));
}

TEST_F(RecordCommandsTest, PlotDrawsEveryPanel) {
  if (!ProgramExists("gnuplot")) {
    GTEST_SKIP() << "gnuplot is not there (apt-get install gnuplot-nox)";
  }
  const std::string run = Write("a");
  const Outcome outcome = Shoal({"plot", run});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, run + "/record/plot.svg\n");
  const std::string svg = ReadFile(run + "/record/plot.svg").value();
  for (const char* text : {"Loss", "Gradient norm", "Learning rate", "tokens/s", "Idle share",
                           "MFU", "compute", "resume", "lost", "failed checkpoint"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  const Outcome two = Shoal({"plot", run, Write("b"), "--output", folder_ / "two.svg"});
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(Shoal({"plot", folder_ / "nothing"}).code, 2);
}

TEST_F(RecordCommandsTest, PlotShowsServersThatCameAndWent) {
  const std::string run = Write("moves");
  std::ofstream lines(run + "/record/metrics.jsonl");
  const auto step = [&](int64_t n, double end) {
    lines << fmt::format(R"({{"event":"step","time":{},"step":{},"loss":1,"step_seconds":0.5}})"
                         "\n",
                         end, n);
  };
  lines << R"({"event":"start","time":0,"step":0,"held":[4,4]})"
        << "\n";
  step(1, 1);
  lines << R"({"event":"moved","time":1,"step":2,"bytes":1000,"held":[2,3,3]})"
        << "\n";
  step(2, 3);
  lines << R"({"event":"moved","time":3,"step":3,"bytes":2000,"held":[8]})"
        << "\n"
        << R"({"event":"resume","time":4,"step":1,"held":[4,4]})"
        << "\n";
  step(2, 5);
  lines << R"({"event":"moved","time":5,"step":3,"bytes":3000000,"held":[3,3,2]})"
        << "\n";
  step(3, 7);
  lines.close();
  const RunHistory history = ReadRunHistory(run).value();
  ASSERT_EQ(history.placements.size(), 3U) << "those before the resume are superseded";
  EXPECT_THAT(history.placements[1].partitions, ElementsAre(4, 4));
  EXPECT_EQ(history.placements[2].moved_bytes, 3000000);
  EXPECT_THAT(CurveOf(history, "pause_seconds"),
              ElementsAre(std::pair(2.0, 3.5), std::pair(3.0, 1.5)));
  const std::string script = PlotOf({history}).script;
  for (const char* text : {"server 2", "Partitions by server", "pause", "State moved"}) {
    EXPECT_THAT(script, HasSubstr(text));
  }
  EXPECT_THAT(PlotOf({history, history}).script, Not(HasSubstr("Partitions by server")));
  EXPECT_THAT(PlotOf({ReadRunHistory(Write("a")).value()}).script, Not(HasSubstr("State moved")));
  std::ofstream(run + "/record/metrics.jsonl") << R"({"event":"start","held":[-1]})"
                                               << "\n";
  EXPECT_THAT(std::string(Message(ReadRunHistory(run).status())),
              HasSubstr("metrics.jsonl:1: held"));
}

TEST_F(RecordCommandsTest, PlotHasMfuWhereOneOfTheRunsKnowsIt) {
  RunHistory known = ReadRunHistory(Write("a")).value();
  RunHistory unknown = known;
  for (RunHistory::Step& step : unknown.steps) {
    step.values.erase("mfu");
  }
  EXPECT_THAT(PlotOf({known}).script, HasSubstr("MFU"));
  EXPECT_THAT(PlotOf({unknown, known}).script, HasSubstr("MFU"));
  EXPECT_THAT(PlotOf({unknown}).script, Not(HasSubstr("MFU")));
}

TEST_F(RecordCommandsTest, CompareNamesTheFirstDifference) {
  const std::string run = Write("a");
  Outcome outcome = Shoal({"compare", run, Write("same")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("the same job"));
  EXPECT_THAT(outcome.out, HasSubstr("losses agree at all 9 steps"));
  const std::string other = Write("other", 1e-6, 7, "0.002");
  outcome = Shoal({"compare", run, other});
  EXPECT_THAT(outcome.out, HasSubstr("train.learning_rate: 0.001 | 0.002"));
  EXPECT_THAT(outcome.out, HasSubstr("losses differ from step 7 on"));
  outcome = Shoal({"compare", run, other, "--tolerance", "1e-4", "--json"});
  EXPECT_THAT(outcome.out, HasSubstr("\"first_difference\":null"));
  EXPECT_THAT(outcome.out, HasSubstr("\"tokens_per_second\":[500.0,500.0]"));
  EXPECT_EQ(Shoal({"compare", run}).code, 2);
}

}  // namespace
}  // namespace shoal::cli
