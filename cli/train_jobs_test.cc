// What a job may say of its data and its training, with the real `shoal train`.
#include <filesystem>
#include <sstream>

#include "cli/testing/train_end_to_end.h"
#include "core/base/file.h"
#include "core/base/memory/host_memory.h"
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

TEST_F(TrainEndToEnd, AStartThatFailsLeavesNoFolder) {
  const std::string directory = folder_ + "/not/yet";
  const std::vector<std::vector<std::string>> starts_that_fail = {
      {"--trace", folder_ + "/absent/trace.json"},
      {"--set", "data.oversize=error", "--set", "data.max_sequence_tokens=8"}};
  for (std::vector<std::string> start : starts_that_fail) {
    start.insert(start.end(), {"--set", "checkpoint.directory=" + directory});
    EXPECT_EQ(Train(start).exit_code, 2) << start.front();
    EXPECT_FALSE(fs::exists(directory)) << start.front();
  }
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

// The rate rises until it harms: the best is not the last.
TEST_F(TrainEndToEnd, TheModelLeftAtTheEndIsTheBest) {
  const ProgramResult run = Train(
      {"--set", "data.validation.fraction=0.2", "--set", "data.validation.every_steps=2", "--set",
       "train.learning_rate=8", "--set", "train.warmup_steps=8", "--set", "checkpoint.best=true",
       "--set", "checkpoint.keep=1", "--set", "checkpoint.every_steps=0"});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  int best = 0;
  std::istringstream lines(run.output);
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);) {
    last = nlohmann::json::parse(line);
    best = last["event"] == "validation" ? last["best_step"].get<int>() : best;
  }
  ASSERT_LT(best, 8) << run.output;
  const auto checkpoint = [&](int step) {
    return fmt::format("{}/checkpoints/step-{:08}", folder_, step);
  };
  EXPECT_TRUE(fs::equivalent(last["best_checkpoint"].get<std::string>(), checkpoint(best)));
  EXPECT_TRUE(fs::equivalent(last["checkpoint"].get<std::string>(), checkpoint(8)));
  const auto left = ReadFile(folder_ + "/checkpoints/huggingface/model.safetensors");
  ASSERT_TRUE(left.ok()) << left.status();
  for (const int step : {best, 8}) {
    const std::string output = fmt::format("{}/exported-{}", folder_, step);
    const ProgramResult exported =
        Shoal({"checkpoint", "export", checkpoint(step), "--output", output});
    ASSERT_EQ(exported.exit_code, 0) << exported.errors;
    EXPECT_EQ(*ReadFile(output + "/model.safetensors") == *left, step == best) << step;
  }
}

TEST_F(TrainEndToEnd, AMixtureGoesOnWithItsSamplesOnOtherWorkers) {
  const std::string data = SHOAL_SOURCE_DIRECTORY "/examples/jobs/data/";
  const auto train = [&](const std::string& name, const std::string& workers,
                         const std::vector<std::string>& more) {
    std::vector<std::string> options = {"--set",
                                        "data.mixture=[{path: " + data +
                                            "alpaca.jsonl, weight: 3}, {path: " + data +
                                            "messages.jsonl, weight: 1}]",
                                        "--set",
                                        "service.accumulate=exact",
                                        "--set",
                                        "cluster.local.workers=" + workers,
                                        "--set",
                                        "checkpoint.directory=" + folder_ + "/" + name};
    options.insert(options.end(), more.begin(), more.end());
    const ProgramResult result = Train(options);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return Shoal({"checkpoint", "hash", folder_ + "/" + name}).output;
  };
  const std::string undisturbed = train("undisturbed", "2", {"--set", "train.steps=8"});
  train("resumed", "1", {"--set", "train.steps=8", "--steps", "3"});
  EXPECT_EQ(train("resumed", "3", {"--set", "train.steps=8", "--resume"}), undisturbed);
  EXPECT_NE(train("other", "1", {"--set", "train.steps=8", "--set", "data.seed=9"}), undisturbed);
}

// The bits of the model that an exact job leaves, with these keys set besides.
std::string ExactModel(const std::string& job, const std::string& directory,
                       const std::vector<std::string>& keys) {
  std::vector<std::string> command = {"train", job,
                                      "--set", "checkpoint.directory=" + directory,
                                      "--set", "service.accumulate=exact",
                                      "--set", "train.steps=3"};
  for (const std::string& key : keys) {
    command.insert(command.end(), {"--set", key});
  }
  const ProgramResult run = Shoal(command);
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  const bool schedule = keys.size() > 1;
  EXPECT_EQ(run.errors.find("activations: ") != std::string::npos, schedule) << run.errors;
  const auto model = ReadFile(directory + "/huggingface/model.safetensors");
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : "";
}

TEST_F(TrainEndToEnd, RecomputeAndOffloadChangeNoBit) {
  const std::string expected = ExactModel(job_file(), folder_ + "/none", {"train.recompute=none"});
  int run = 0;
  for (const auto& [recompute, offload] :
       {std::pair("full", "none"), std::pair("none", "full"), std::pair("light", "half")}) {
    SCOPED_TRACE(fmt::format("{}, {}", recompute, offload));
    EXPECT_TRUE(ExactModel(job_file(), fmt::format("{}/run-{}", folder_, ++run),
                           {fmt::format("train.recompute={}", recompute),
                            fmt::format("train.offload={}", offload)}) == expected);
  }
}

// Microbatches may be so large that what this machine's other programs have does not count. The
// pace is given, for measuring it takes such a microbatch.
TEST_F(TrainEndToEnd, RecomputesWhatDoesNotFit) {
  std::vector<std::string> keys = {"--set", "data.microbatch_tokens=16777216"};
  for (const char* rate : {"forward_flops", "backward_input_flops", "backward_weights_flops",
                           "offload_bytes_per_second", "reload_bytes_per_second"}) {
    keys.insert(keys.end(), {"--set", fmt::format("cluster.pipeline.pace.{}=1e9", rate)});
  }
  const auto with = [&](std::vector<std::string> command, const std::string& recompute) {
    command.insert(command.end(), {"--json", "--set", "train.recompute=" + recompute});
    command.insert(command.end(), keys.begin(), keys.end());
    return Shoal(command);
  };
  const auto planned = [&](const std::string& recompute) {
    const ProgramResult plan = with({"plan", job_file()}, recompute);
    EXPECT_EQ(plan.exit_code, 0) << plan.errors;
    std::istringstream lines(plan.output);
    int64_t total = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto event = nlohmann::json::parse(line);
      total = event["event"] == "plan" ? event["total_bytes"].get<int64_t>() : total;
    }
    return total;
  };
  const int64_t without = planned("none");
  const int64_t full = planned("full");
  ASSERT_LT(full, without);
  ASSERT_EQ(setenv(kHostMemoryVariable, std::to_string((full + without) / 2).c_str(), 1), 0);
  const auto memory = ReadHostMemory();
  const ProgramResult refused = with({"train", job_file()}, "none");
  const ProgramResult fits = with({"train", job_file()}, "auto");
  unsetenv(kHostMemoryVariable);
  if (memory.ok() && memory->available < full) {
    GTEST_SKIP() << "the control group has a limit";
  }
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("the job needs"));
  EXPECT_EQ(fits.exit_code, 0) << fits.errors;
  EXPECT_THAT(fits.errors, HasSubstr("train.recompute: full, the least that fits: "));
  EXPECT_EQ(ParseSteps(fits.output).size(), 8U);
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
    const bool adapts = entry.path().stem().string().ends_with("lora");
    EXPECT_TRUE(fs::exists(directory + (adapts ? "/huggingface/adapter_model.safetensors"
                                               : "/huggingface/model.safetensors")));
    ++jobs;
  }
  EXPECT_EQ(jobs, 14);
  EXPECT_TRUE(fs::exists(folder_ + "/messages/huggingface/chat_template.jinja"));
  for (const char* step : {"/mixture/step-00000003", "/mixture/step-00000006"}) {
    EXPECT_THAT(*ReadFile(folder_ + step + "/huggingface/config.json"), HasSubstr("bfloat16"));
  }
}

}  // namespace
}  // namespace shoal::cli
