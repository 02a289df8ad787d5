// What a job may say of its data and its training, with the real `shoal train`.
#include <filesystem>
#include <sstream>

#include "cli/testing/train_end_to_end.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

TEST_F(TrainEndToEnd, EpochsAreTheStepsOfSoManyPasses) {
  const ProgramResult half = Train({"--set", "train.epochs=0.2", "--steps", "2"});
  ASSERT_EQ(half.exit_code, 0) << half.errors;
  EXPECT_THAT(half.errors, HasSubstr("train.epochs 0.2: 5 steps")) << "of 200 samples, 8 a step";
  const ProgramResult rest = Train({"--set", "train.epochs=0.2", "--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.errors;
  EXPECT_EQ(ParseSteps(rest.output).back().step, 5);
  const ProgramResult beyond = Train({"--set", "train.epochs=0.2", "--steps", "6", "--overwrite"});
  EXPECT_EQ(beyond.exit_code, 2);
  EXPECT_THAT(beyond.errors, HasSubstr("--steps 6 is beyond the 5 steps"));
}

// A learning rate that helps nobody: the first validation is the best.
TEST_F(TrainEndToEnd, ValidatesOnAPartAndEndsEarly) {
  const std::vector<std::string> options = {
      "--set", "data.validation.fraction=0.2",  "--set", "data.validation.every_steps=2",
      "--set", "data.validation.at_start=true", "--set", "train.early_stop.patience=2",
      "--set", "train.learning_rate=0.5",       "--set", "checkpoint.best=true"};
  const ProgramResult run = Train(options);
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  std::vector<nlohmann::json> validations;
  std::istringstream lines(run.output);
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);) {
    last = nlohmann::json::parse(line);
    if (last["event"] == "validation") {
      validations.push_back(last);
    }
  }
  ASSERT_EQ(validations.size(), 3U) << run.output;
  for (size_t i = 0; i < validations.size(); ++i) {
    EXPECT_EQ(validations[i]["step"], 2 * i);
    EXPECT_EQ(validations[i]["since_best"], i);
    EXPECT_GT(validations[i]["target_tokens"], 0);
  }
  EXPECT_EQ(last["event"], "done");
  EXPECT_EQ(last["step"], 4);
  EXPECT_EQ(last["early"], true);
  EXPECT_EQ(ParseSteps(run.output).size(), 4U);
  std::vector<std::string> again = options;
  again.insert(again.end(), {"--resume", "--set", "checkpoint.export_huggingface=false"});
  const ProgramResult resumed = Train(again);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_TRUE(ParseSteps(resumed.output).empty()) << resumed.output;
}

// One for each form of data and each schedule.
TEST_F(TrainEndToEnd, TheExampleJobsTrain) {
  int jobs = 0;
  for (const auto& entry : fs::directory_iterator(SHOAL_SOURCE_DIRECTORY "/examples/jobs")) {
    if (entry.path().extension() != ".yaml") {
      continue;
    }
    SCOPED_TRACE(entry.path());
    const std::string directory = folder_ + "/" + entry.path().stem().string();
    const ProgramResult result =
        Shoal({"train", entry.path(), "--json", "--set", "model=" + folder_ + "/model", "--set",
               "checkpoint.directory=" + directory});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_GE(ParseSteps(result.output).size(), 4U);
    EXPECT_TRUE(fs::exists(directory + "/huggingface/model.safetensors"));
    ++jobs;
  }
  EXPECT_EQ(jobs, 8);
}

}  // namespace
}  // namespace shoal::cli
