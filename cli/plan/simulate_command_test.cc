#include <unistd.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class SimulateCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/simulate_command_" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(CreateDirectories(folder_).ok());
    Write("job.yaml",
          "model: model\n"
          "data: {train: data.jsonl, max_sequence_tokens: 256, microbatch_tokens: 256}\n"
          "train: {minibatch_samples: 32}\n"
          "cluster: {local: {workers: 4}}\n");
    Write("cluster.yaml", "devices: 8\ndevice_link: {rate: 250GB/s}\n");
    ASSERT_EQ(Shoal({"model", "init", "--shape", "tiny", "--vocabulary", "512", "--output",
                     folder_ + "/model"})
                  .code,
              0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) const {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/" + name, text).ok());
  }
  // Writes samples as token ids, of different lengths.
  void WriteData() const {
    std::string lines;
    for (int i = 0; i < 64; ++i) {
      json ids = json::array();
      for (int token = 0; token < 8 + (i * 37) % 240; ++token) {
        ids.push_back(3 + token % 200);
      }
      lines += json({{"input_ids", ids}, {"labels", ids}}).dump() + "\n";
    }
    Write("data.jsonl", lines);
  }
  Outcome Simulate(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"simulate", folder_ + "/job.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
  std::vector<std::string> OnCluster(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--cluster", folder_ + "/cluster.yaml", "--shape", "1.5b"});
    return more;
  }
  std::string folder_;
};

TEST_F(SimulateCommandTest, SaysWhatEveryChoiceTakesAndThatItIsSimulated) {
  const Outcome text = Simulate(OnCluster({"--lengths", "longalign", "--steps", "20"}));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("simulated: 1.5b"));
  EXPECT_THAT(text.out, HasSubstr("baseline"));
  EXPECT_THAT(text.out, ContainsRegex(" idle +get_wait +push_wait +layer_wait +step_wait "));
  EXPECT_THAT(text.out, HasSubstr("On demand helps here: 1."));
  EXPECT_THAT(text.out, HasSubstr("data.microbatch_tokens is taken as 65536"));

  const Outcome run = Simulate(OnCluster({"--lengths", "longalign", "--steps", "20", "--json"}));
  EXPECT_EQ(run.code, 0) << run.err;
  const std::vector<json> lines = JsonLines(run.out);
  std::map<std::string, json> choices;
  for (const json& line : lines) {
    if (line["event"] == "simulated") {
      choices[line["synchronization"].get<std::string>() + " " +
              line["assignment"].get<std::string>()] = line;
    }
  }
  EXPECT_EQ(choices.size(), 9u);
  EXPECT_EQ(choices["layer lb-micro"]["speed_up"], 1.0);
  EXPECT_GT(choices["step lb-mini"]["speed_up"], 1.2);
  EXPECT_EQ(choices["step lb-mini"]["barriers_per_step"], 2);
  EXPECT_GT(choices["layer local-sort"]["idle_share"], choices["layer lb-micro"]["idle_share"]);
  EXPECT_EQ(lines.back()["event"], "verdict");
  EXPECT_EQ(run.out, Simulate(OnCluster({"--lengths", "longalign", "--steps", "20", "--json"})).out)
      << "the same every time";
}

TEST_F(SimulateCommandTest, TakesTheJobsOwnDataAndWorkers) {
  WriteData();
  const Outcome run = Simulate({"--steps", "3"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("on 4 devices, 32 samples a step of data.jsonl"));
  EXPECT_THAT(run.out, HasSubstr("without --cluster, the job's workers are taken for devices"));

  const Outcome emulated =
      Simulate({"--steps", "3", "--set", "emulate.shape=7b", "--set", "emulate.speeds=[1, 0.5]"});
  EXPECT_THAT(emulated.out, HasSubstr("simulated: 7b"));
  EXPECT_THAT(emulated.out, HasSubstr("the job's emulated workers"));
}

TEST_F(SimulateCommandTest, PlanGivesTheShortForm) {
  WriteData();
  const Outcome plain = Shoal({"plan", folder_ + "/job.yaml"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("On demand"));
  EXPECT_THAT(plain.out, HasSubstr("without --cluster"));
  // A link too slow for so small a model's computing to hide.
  Write("slow.yaml", "devices: 8\ndevices_per_node: 4\nnode_link: {rate: 1Mb/s}\n");
  const Outcome slow =
      Shoal({"plan", folder_ + "/job.yaml", "--cluster", folder_ + "/slow.yaml", "--json"});
  EXPECT_EQ(slow.code, 0) << slow.err;
  const json verdict = JsonLines(slow.out).back();
  EXPECT_EQ(verdict["event"], "verdict");
  EXPECT_EQ(verdict["kind"], "simulated");
  EXPECT_LT(verdict["speed_up"], 0.9);
  EXPECT_THAT(verdict["answer"].get<std::string>(), HasSubstr("On demand loses here"));
}

TEST_F(SimulateCommandTest, WritesATimeline) {
  const std::string path = folder_ + "/trace.json";
  const Outcome run =
      Simulate(OnCluster({"--lengths", "longalign", "--steps", "5", "--trace", path}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("simulated spans"));
  const json events = json::parse(*ReadFile(path))["traceEvents"];
  std::map<std::string, int> names;
  for (const json& event : events) {
    if (event["ph"] == "X") {
      ++names[event["name"]];
      EXPECT_LE(event["args"]["step"], 3);
    } else if (event["name"] == "process_name") {
      EXPECT_THAT(event["args"]["name"].get<std::string>(), HasSubstr("simulated: "));
    }
  }
  EXPECT_GT(names["forward"], 0);
  EXPECT_GT(names["backward"], 0);
  EXPECT_GT(names["layer_wait"], 0);
  EXPECT_GT(names["step_wait"], 0);
}

// The commands exactly as docs/on-demand.md has them.
TEST_F(SimulateCommandTest, DocumentedCommandsWork) {
  WriteData();
  const std::string root = SHOAL_SOURCE_DIRECTORY;
  std::istringstream document(*ReadFile(root + "/docs/on-demand.md"));
  int commands = 0;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("shoal plan ") && !line.starts_with("shoal simulate ")) {
      continue;
    }
    std::vector<std::string> arguments;
    std::istringstream words(line.substr(line.find(' ') + 1));
    for (std::string word; words >> word;) {
      arguments.push_back(word.starts_with("examples/") ? root + "/" + word
                          : word == "job.yaml"          ? folder_ + "/job.yaml"
                          : word == "timeline.json"     ? folder_ + "/timeline.json"
                                                        : word);
    }
    const Outcome run = Shoal(arguments);
    EXPECT_EQ(run.code, 0) << line << "\n" << run.err;
    EXPECT_THAT(run.out, HasSubstr("imulated"));
    ++commands;
  }
  EXPECT_GE(commands, 5);
}

TEST_F(SimulateCommandTest, BadInputIsRefusedInOneLine) {
  ExpectRefused(Simulate(OnCluster({"--lengths", "long"})), "lengths 'long'");
  ExpectRefused(Simulate({"--shape", "9b", "--lengths", "aime"}), "--shape 9b: choose one of");
  ExpectRefused(Simulate({"--cluster", folder_ + "/none.yaml", "--lengths", "aime"}), "none.yaml");
  ExpectRefused(Simulate({"--data", "x", "--lengths", "aime"}), "exclude each other");
  Write("cluster.yaml", "devices: 8\nspeed: 3\n");
  ExpectRefused(Simulate(OnCluster({"--lengths", "aime"})), "cluster.yaml:2: unknown key 'speed'");
}

}  // namespace
}  // namespace shoal::cli
