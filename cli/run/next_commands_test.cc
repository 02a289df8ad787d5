#include "cli/run/next_commands.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(NextCommands, ResumingSaysAllThatTheRunWasTold) {
  EXPECT_EQ(ResumeCommand({.job_file = "job.yaml"}), "shoal train job.yaml --resume");
  EXPECT_EQ(
      ResumeCommand(
          {"my job.yaml", {"train.steps=9", "service.transports=[shm, tcp]"}, "token", {"tls"}}),
      "shoal train 'my job.yaml' --set train.steps=9 --set 'service.transports=[shm, tcp]' "
      "--token-file token --tls tls --resume");
  EXPECT_EQ(ResumeCommand({.job_file = "job.yaml", .tls = {"tls", "team.example"}}),
            "shoal train job.yaml --tls tls --tls-domain team.example --resume");
  EXPECT_EQ(ResumeCommand({.job_file = "it's.yaml"}), R"(shoal train 'it'\''s.yaml' --resume)");
}

TEST(NextCommands, AModelIsTriedInTheFormItWasTrainedIn) {
  plan::Job job;
  job.data.chat_template = "chatml";
  EXPECT_EQ(GenerateCommand("out/huggingface", job),
            "shoal generate --model out/huggingface --chat --template chatml --prompt \"...\"");
  job.data.chat_template = "plain";
  job.data.fields = {{"prompt", "question"}, {"completion", "the answer"}};
  EXPECT_EQ(EvalCommand("out/huggingface", job),
            "shoal eval --model out/huggingface --template plain --field 'completion=the answer' "
            "--field prompt=question --data FILE");
}

TEST(NextCommands, AModelOfDocumentsContinuesText) {
  plan::Job job;
  job.train.objective = plan::Objective::kPretrain;
  EXPECT_EQ(GenerateCommand("out", job), "shoal generate --model out --prompt \"...\"");
  EXPECT_EQ(EvalCommand("out", job), "shoal eval --model out --objective pretrain --data FILE");
  job.train.objective = plan::Objective::kDpo;  // as one of conversations
  EXPECT_THAT(EvalCommand("out", job), Not(HasSubstr("--objective")));
  EXPECT_THAT(GenerateCommand("out", job), HasSubstr("--chat"));
}

TEST(NextCommands, AnAdapterIsTriedWithTheModelItIsOf) {
  plan::Job job{.model = "my model", .lora = {.rank = 4}};
  job.train.objective = plan::Objective::kPretrain;
  EXPECT_EQ(GenerateCommand("out", job),
            "shoal generate --model 'my model' --adapter out --prompt \"...\"");
  EXPECT_EQ(EvalCommand("out", job),
            "shoal eval --model 'my model' --adapter out --objective pretrain --data FILE");
}

TEST(NextCommands, TheStateOfARunIsAskedForAsItWasStarted) {
  EXPECT_EQ(StatusCommand("my run", {}), "shoal status --run 'my run'");
  EXPECT_EQ(StatusCommand("run", {"tls", "team.example"}),
            "shoal status --run run --tls tls --tls-domain team.example");
}

}  // namespace
}  // namespace shoal::cli
