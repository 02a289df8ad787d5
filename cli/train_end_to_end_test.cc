// The real `shoal train` with real processes on a small synthetic set: exit codes, events, and the
// state after something is killed.
#include "cli/testing/train_end_to_end.h"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/base/file.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

TEST_F(TrainEndToEnd, ReachesTheTargetAndLeavesAModel) {
  // As left by a run killed while it tokenised.
  const std::string unfinished = folder_ + "/checkpoints/data/train.tokens.0123.tmp";
  fs::create_directories(folder_ + "/checkpoints/data");
  std::ofstream(unfinished) << "half";
  const ProgramResult result = Train();
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_FALSE(fs::exists(unfinished));
  const auto steps = ParseSteps(result.output);
  ASSERT_EQ(steps.size(), 8u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_GT(steps[i].target_tokens, 0);
  }
  const std::string last =
      result.output.substr(result.output.rfind('\n', result.output.size() - 2) + 1);
  const auto done = nlohmann::json::parse(last);
  EXPECT_EQ(done["event"], "done");
  EXPECT_EQ(done["step"], 8);
  EXPECT_TRUE(fs::exists(done["checkpoint"].get<std::string>() + "/manifest.json"));
  const std::string model = folder_ + "/checkpoints/huggingface";
  EXPECT_EQ(Shoal({"checkpoint", "verify", folder_ + "/checkpoints"}).exit_code, 0);
  const ProgramResult text = Shoal({"generate", "--model", model, "--prompt", "Sort 3 1 2.",
                                    "--chat", "--template", "chatml", "--max-new-tokens", "4"});
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  const ProgramResult eval =
      Shoal({"eval", "--model", model, "--data", folder_ + "/train.jsonl", "--template", "chatml",
             "--limit", "20", "--answers", "2", "--max-new-tokens", "4", "--json"});
  EXPECT_EQ(eval.exit_code, 0) << eval.errors;
  EXPECT_GT(nlohmann::json::parse(eval.output)["loss"].get<double>(), 0);
}

TEST_F(TrainEndToEnd, StopsAtAStepAndGoesOnToTheSameEnd) {
  const ProgramResult whole = Train();
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  EXPECT_EQ(Train().exit_code, 2) << "an earlier run's checkpoints are never mixed with a new one";
  const ProgramResult half = Train({"--overwrite", "--steps", "4"});
  ASSERT_EQ(half.exit_code, 0) << half.errors;
  EXPECT_EQ(ParseSteps(half.output).size(), 4u);
  const ProgramResult rest = Train({"--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.errors;
  const auto steps = ParseSteps(rest.output);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps.front().step, 5);
  EXPECT_NEAR(steps.back().loss, ParseSteps(whole.output).back().loss, 1e-4 * steps.back().loss);
}

TEST_F(TrainEndToEnd, TermIsACheckpointAndExitCode75ThenResumeGoesOn) {
  const std::unique_ptr<Program> run = StartLongRun();
  const std::set<pid_t> children = ChildrenOf(run->pid());
  ExpectStatusOfRunningJob();
  run->Signal(SIGTERM);
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 75) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("state of this run: shoal status --run "));
  EXPECT_FALSE(fs::exists(token_file()));
  EXPECT_THAT(Shoal({"status", job_file()}).output,
              HasSubstr("no shoal train runs here; the last one: interrupted, step "));
  for (const pid_t pid : children) {
    EXPECT_FALSE(Runs(pid)) << CommandOf(pid);
  }
  const auto steps = ParseSteps(result.output);
  ASSERT_FALSE(steps.empty());
  const int64_t last = steps.back().step;
  WriteJob(100000, 0);
  const ProgramResult resumed = Train({"--resume", "--steps", std::to_string(last + 2)});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.errors;
  const auto more = ParseSteps(resumed.output);
  ASSERT_EQ(more.size(), 2u);
  EXPECT_EQ(more.front().step, last + 1) << "no step is lost and none is done twice";
}

TEST_F(TrainEndToEnd, AKilledWorkerIsNamed) { ExpectLossIsNamed("shoal-worker", "worker-"); }
TEST_F(TrainEndToEnd, AKilledServerIsNamed) { ExpectLossIsNamed("shoal-server", "server-"); }
TEST_F(TrainEndToEnd, AKilledCoordinatorIsNamed) {
  ExpectLossIsNamed("shoal-coordinator", "coordinator");
}

// Two groups of two stages.
const std::vector<std::string> kPipeline = {"--set", "cluster.local.workers=4", "--set",
                                            "cluster.pipeline.stages=2"};

TEST_F(TrainEndToEnd, APipelineLearnsWhatSingleWorkersDoAndGoesOnAsOnes) {
  const ProgramResult single = Train();
  ASSERT_EQ(single.exit_code, 0) << single.errors;
  const std::vector<StepLine> expected = ParseSteps(single.output);
  std::vector<std::string> half = kPipeline;
  half.insert(half.end(),
              {"--overwrite", "--steps", "4", "--set", "cluster.pipeline.offload=full"});
  const ProgramResult stages = Train(half);
  ASSERT_EQ(stages.exit_code, 0) << stages.errors;
  EXPECT_THAT(stages.errors, HasSubstr("pipeline: "));
  const ProgramResult rest = Train({"--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.errors;
  std::vector<StepLine> steps = ParseSteps(stages.output);
  const std::vector<StepLine> more = ParseSteps(rest.output);
  steps.insert(steps.end(), more.begin(), more.end());
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(steps[i].loss, expected[i].loss, 1e-4 * expected[i].loss) << "step " << i + 1;
    EXPECT_EQ(steps[i].tokens, expected[i].tokens);
    EXPECT_EQ(steps[i].target_tokens, expected[i].target_tokens);
  }
}

TEST_F(TrainEndToEnd, AKilledStageIsNamed) {
  ExpectLossIsNamed("shoal-worker", "worker-", kPipeline, 4);
}

TEST_F(TrainEndToEnd, KillingTheCommandItselfLeavesNoProcess) {
  const std::unique_ptr<Program> run = StartLongRun();
  const std::set<pid_t> children = ChildrenOf(run->pid());
  EXPECT_EQ(children.size(), 5u);
  run->Signal(SIGKILL);
  run->Wait(kLimit);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  const auto any = [&] { return std::any_of(children.begin(), children.end(), Runs); };
  while (any() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_FALSE(any());
  // It could not remove its token, which is now void; the next run has its own.
  const auto left = ReadFile(token_file());
  ASSERT_TRUE(left.ok()) << left.status();
  const ProgramResult nobody = Shoal({"status", job_file()});
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.errors, HasSubstr("if its shoal train was killed"));
  const std::unique_ptr<Program> next = StartLongRun({"--overwrite"});
  ExpectStatusOfRunningJob();
  EXPECT_NE(*ReadFile(token_file()), *left);
}

TEST_F(TrainEndToEnd, OverwriteRemovesNothingBeforeTheFirstStep) {
  ASSERT_EQ(Train().exit_code, 0);
  const auto checkpoint = ReadFile(folder_ + "/checkpoints/step-00000008/manifest.json");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::vector<std::vector<std::string>> starts_that_fail = {
      {"--overwrite", "--set", "data.train=" + folder_ + "/absent.jsonl"},
      {"--overwrite", "--trace", folder_ + "/absent/trace.json"},
      {"--overwrite", "--set", "cluster.local.servers=0"}};
  for (const std::vector<std::string>& start : starts_that_fail) {
    EXPECT_EQ(Train(start).exit_code, 2) << start.back();
    EXPECT_EQ(*ReadFile(folder_ + "/checkpoints/step-00000008/manifest.json"), *checkpoint);
    EXPECT_TRUE(fs::exists(folder_ + "/checkpoints/huggingface")) << start.back();
  }
  EXPECT_EQ(Train({"--overwrite", "--steps", "4"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_ + "/checkpoints/step-00000008"));
  EXPECT_FALSE(fs::exists(folder_ + "/checkpoints/earlier-run"));
}

TEST_F(TrainEndToEnd, ResumeAutoStartsGoesOnAndPassesOverDamage) {
  const ProgramResult half = Train({"--resume=auto", "--steps", "6"});
  ASSERT_EQ(half.exit_code, 0) << half.errors;
  ASSERT_EQ(ParseSteps(half.output).size(), 6u);
  // Checkpoints of steps 4 and 6; cuts the newer one short.
  fs::resize_file(folder_ + "/checkpoints/step-00000006/server-0000.shard", 100);
  const ProgramResult refused = Train({"--resume"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors, HasSubstr("go on from there with --resume=4"));
  EXPECT_THAT(Train({"--resume=5"}).errors, HasSubstr("checkpoints of steps 4, 6"));
  const ProgramResult rest = Train({"--resume=auto"});
  ASSERT_EQ(rest.exit_code, 0) << rest.errors;
  const auto steps = ParseSteps(rest.output);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps.front().step, 5);
}

TEST_F(TrainEndToEnd, ResumeOfAStepGoesOnFromThere) {
  ASSERT_EQ(Train().exit_code, 0);
  const ProgramResult again = Train({"--resume=4"});
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(ParseSteps(again.output).size(), 4u);
  EXPECT_TRUE(fs::exists(folder_ + "/checkpoints/step-00000008/manifest.json"));
}

TEST_F(TrainEndToEnd, ASignalThatComesTwiceAtOnceLeavesACheckpoint) {
  const std::unique_ptr<Program> run = StartLongRun();
  for (const int signal : {SIGINT, SIGINT, SIGTERM}) {
    run->Signal(signal);
    absl::SleepFor(absl::Milliseconds(5));
  }
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 75) << result.errors;
  EXPECT_TRUE(HasCheckpoint());
}

TEST_F(TrainEndToEnd, ACoordinatorThatStandsStillForLessThanTheLeaseLosesNobody) {
  const std::unique_ptr<Program> run = StartLongRun({"--set", "cluster.lease_seconds=3"});
  const std::set<pid_t> children = ChildrenOf(run->pid());
  const auto coordinator = std::ranges::find_if(
      children, [](pid_t pid) { return CommandOf(pid).ends_with("shoal-coordinator"); });
  ASSERT_NE(coordinator, children.end());
  kill(*coordinator, SIGSTOP);
  absl::SleepFor(absl::Milliseconds(2700));
  kill(*coordinator, SIGCONT);
  const size_t before = ParseSteps(run->OutputSoFar()).size();
  const absl::Time deadline = absl::Now() + kLimit;
  while (ParseSteps(run->OutputSoFar()).size() < before + 20 && Runs(run->pid()) &&
         absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  run->Signal(SIGTERM);
  const ProgramResult result = run->Wait(kLimit);
  EXPECT_EQ(result.exit_code, 75) << result.errors;
}

TEST_F(TrainEndToEnd, AnOutputThatNobodyReadsLeavesACheckpoint) {
  WriteJob(100000, 0);
  Program pipe({"/bin/bash", "-c",
                "\"$1\" train \"$2\" --json | head -n 2; exit \"${PIPESTATUS[0]}\"", "bash",
                BinDirectory() + "/shoal", job_file()});
  const ProgramResult result = pipe.Wait(kLimit);
  EXPECT_EQ(result.exit_code, 75) << result.errors;
  EXPECT_TRUE(HasCheckpoint());
}

TEST_F(TrainEndToEnd, CtrlCIsHeardWhileNobodyReadsTheOutput) {
  WriteJob(100000, 2);
  // Prints to a pipe that is full from the start and stays so. Job control: else a shell's children
  // do not hear SIGINT.
  const std::string script =
      "set -m; mkfifo \"$1\"; exec 3<>\"$1\"\n"
      "dd if=/dev/zero of=\"$1\" bs=4096 oflag=nonblock status=none 2>&1\n"
      "\"${@:3}\" >\"$1\" 3>&- &\n"
      "trap 'kill -KILL $!' EXIT\n"
      "until compgen -G \"$2\" || ! kill -0 $!; do sleep 0.05; done\n"
      "sleep 1; kill -INT $!; wait $!\n";
  std::vector<std::string> command = {
      "bash", "-c", script, "bash", folder_ + "/full", folder_ + "/checkpoints/*/manifest.json"};
  std::ranges::copy(TrainCommand(), std::back_inserter(command));
  Program program(command);
  const ProgramResult result = program.Wait(kLimit);
  EXPECT_EQ(result.exit_code, 75) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("nobody read them"));
}

TEST_F(TrainEndToEnd, ACoordinatorThatIsNotThereIsNamedAtOnce) {
  Program run(RemoteCommand("127.0.0.1:1", "remote"));
  const ProgramResult result = run.Wait(kLimit);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output + result.errors, HasSubstr("Connection refused"));
  EXPECT_THAT(result.output + result.errors, HasSubstr("trying for"));
  EXPECT_FALSE(fs::exists(folder_ + "/remote/data")) << "before anything is tokenised";
}

// Nobody joins the coordinator, so no step begins.
TEST_F(TrainEndToEnd, AStopBeforeTheFirstStepExitsOneAndASecondJobIsRefused) {
  const std::string port_file = folder_ + "/port";
  const Program coordinator({BinDirectory() + "/shoal-coordinator", "--port-file", port_file,
                             "--token-file", WriteToken()});
  const absl::Time deadline = absl::Now() + kLimit;
  while (!fs::exists(port_file) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  const std::string address = fmt::format("127.0.0.1:{}", std::stoi(*ReadFile(port_file)));
  const auto patient = [&](const std::string& name) {  // the first is there for long enough
    std::vector<std::string> command = RemoteCommand(address, name);
    command.insert(command.end(), {"--set", "cluster.start_timeout_seconds=60"});
    return command;
  };
  Program first(patient("first"));
  const auto status = [&] {
    return Shoal({"status", "--coordinator", address, "--token-file", folder_ + "/token"}).output;
  };
  while (status().find("no job yet") != std::string::npos && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  Program second(patient("second"));
  const ProgramResult refused = second.Wait(kLimit);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.errors,
              ::testing::MatchesRegex("shoal: error: [^\n]*this coordinator has a job already "
                                      "[^\n]*start another coordinator [^\n]*--stay[^\n]*\n"));
  first.Signal(SIGTERM);
  const ProgramResult stopped = first.Wait(kLimit);
  EXPECT_EQ(stopped.exit_code, 1) << stopped.errors;
  EXPECT_THAT(stopped.errors, HasSubstr("there is no checkpoint yet to resume from"));
}

TEST_F(TrainEndToEnd, AnEmulatedRunExportsNoModel) {
  Program run({BinDirectory() + "/shoal", "train", job_file(), "--set", "emulate.shape=25m",
               "--set", "emulate.time_scale=0.001"});
  const ProgramResult result = run.Wait(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("no model is exported"));
  EXPECT_FALSE(fs::exists(folder_ + "/checkpoints/huggingface"));
}

TEST_F(TrainEndToEnd, BadInputIsOneLineAndExitCodeTwo) {
  const auto expect_refused = [](const ProgramResult& result, const std::string& words) {
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(words));
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
    EXPECT_EQ(result.output, "");
  };
  expect_refused(Train({"--resume"}), "checkpoints");
  expect_refused(Train({"--resume=soon"}), "checkpoints");
  expect_refused(Train({"--steps", "9"}), "train.steps");
  expect_refused(Train({"--set", "train.learning_rat=1"}), "learning_rate");
  expect_refused(Train({"--set", "train.warmup_steps=100"}), "train.warmup_steps");
  expect_refused(Train({"--set", "data.validation.path=" + folder_ + "/absent.jsonl"}),
                 "data.validation.path=" + folder_ + "/absent.jsonl: cannot open");
  expect_refused(Train({"--set", "train.groups=[{match: '*.no_such_*', freeze: true}]"}),
                 "no tensor of the model is of the group '*.no_such_*'");
  expect_refused(Train({"--set", "data.train=" + folder_ + "/absent.jsonl"}), "absent.jsonl");
  expect_refused(Train({"--set", "model=" + folder_ + "/absent"}), "/absent is no folder");
  expect_refused(Train({"--set", "cluster.pipeline.schedule=1f1c"}),
                 "cluster.pipeline.schedule=1f1c: '1f1c' is no schedule");
  expect_refused(
      Train({"--set", "data.microbatch_tokens=16000000", "--set", "cluster.local.workers=1000"}),
      "memory");
  const std::string nowhere = folder_ + "/nowhere.yaml";
  std::ofstream(nowhere) << "model: m\ndata: {train: t}\ncluster: {servers: 1}\n";
  expect_refused(Shoal({"train", nowhere}), "go with cluster.coordinator");
  std::ofstream(folder_ + "/train.jsonl", std::ios::app) << "{broken\n";
  expect_refused(Train(), "train.jsonl:201");
}

}  // namespace
}  // namespace shoal::cli
