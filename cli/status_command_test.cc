#include "cli/status_command.h"

#include <unistd.h>

#include <filesystem>

#include "cli/run/run_access.h"
#include "cli/testing/command_line.h"
#include "cli/testing/fake_coordinator.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class StatusCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    token_file_ = testing::TempDir() + "/status_token_" + std::to_string(getpid());
    ASSERT_TRUE(WriteFileAtomically(token_file_, coordinator_.token().secret() + "\n").ok());
  }
  void TearDown() override { unlink(token_file_.c_str()); }
  Outcome Status(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"status", "--coordinator", coordinator_.address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Shoal(arguments);
  }
  FakeCoordinator coordinator_;
  std::string token_file_;
};

TEST_F(StatusCommandTest, ShowsStateAndMembers) {
  const Outcome text = Status({"--token-file", token_file_});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("training, step 3 of 10, mfu 41%\n"));
  EXPECT_THAT(text.out, HasSubstr("worker-1, stage 1 of group 0"));
  EXPECT_THAT(text.out, HasSubstr("worker-0, leaving"));
  EXPECT_THAT(text.out, ContainsRegex("worker-1 +shm +server-0, server-1\n"));
  EXPECT_THAT(text.out, ContainsRegex("worker-1 +tcp +server-2 +shm: on another host"));
  EXPECT_THAT(text.out,
              ContainsRegex("worker +step +took +compute +get_wait +push_wait +layer_wait "
                            "+neighbour_wait +transfer_wait +step_wait +waited most for\n"));
  EXPECT_THAT(text.out, HasSubstr("41.0 %"));
  EXPECT_THAT(text.out, HasSubstr("13.0 %"));
  EXPECT_THAT(text.out, HasSubstr("worker-0"));
  const Outcome json = Status({"--token-file", token_file_, "--json"});
  const auto line = nlohmann::json::parse(json.out);
  EXPECT_EQ(line["mfu"], 0.412);
  EXPECT_EQ(line["members"][0]["host"], "reef");
  EXPECT_EQ(line["members"][0]["last_step"]["waited_for"], "worker-0");
  EXPECT_EQ(line["members"][0]["last_step"]["transfer_wait"], 0.13);
  EXPECT_EQ(line["members"][0]["last_step"]["step_wait"], 0.41);
  EXPECT_EQ(line["members"][0]["place"], "stage 1 of group 0");
  EXPECT_FALSE(line["members"][0].contains("leaving"));
  EXPECT_EQ(line["members"][1]["leaving"], true);
  EXPECT_EQ(line["members"][0]["connections"].size(), 3u);
  EXPECT_EQ(line["members"][0]["connections"][2]["transport"], "tcp");
}

TEST_F(StatusCommandTest, AWrongTokenOrNoCoordinatorIsAFailureThatSaysSo) {
  ASSERT_TRUE(WriteFileAtomically(token_file_, "not-the-token").ok());
  const Outcome wrong = Status({"--token-file", token_file_});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("coordinator"));
  const Outcome absent = Status({"--token-file", token_file_ + ".absent"});
  EXPECT_EQ(absent.code, 2);
  coordinator_.Shutdown();
  EXPECT_EQ(Status({"--token-file", token_file_}).code, 1);
}

// A `shoal train` as seen from outside: the job's checkpoint directory and the files published
// there.
class LocalStatusTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(CreateDirectories(LogFolderOf(checkpoints_)).ok());
    ASSERT_TRUE(WriteFileAtomically(job_,
                                    "model: model\n"
                                    "data: {train: data.jsonl}\n"
                                    "checkpoint: {directory: checkpoints}\n")
                    .ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void Publish(const rpc::Token& token) {
    auto access = RunAccess::Publish(LogFolderOf(checkpoints_), coordinator_.address(), token);
    ASSERT_TRUE(access.ok()) << access.status();
    access_ = *std::move(access);
  }
  const std::string folder_ = testing::TempDir() + "/status_local_" + std::to_string(getpid());
  const std::string checkpoints_ = folder_ + "/checkpoints";
  const std::string job_ = folder_ + "/job.yaml";
  FakeCoordinator coordinator_;
  std::unique_ptr<RunAccess> access_;
};

TEST_F(LocalStatusTest, ARunIsFoundByItsJobFileOrItsCheckpointDirectory) {
  Publish(coordinator_.token());
  for (const std::vector<std::string>& which :
       {std::vector<std::string>{job_}, {"--run", checkpoints_}}) {
    std::vector<std::string> arguments = {"status"};
    arguments.insert(arguments.end(), which.begin(), which.end());
    const Outcome outcome = Shoal(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("training, step 3 of 10"));
  }
}

TEST_F(LocalStatusTest, WithoutARunTheLineSaysWhereItWasLookedFor) {
  const Outcome none = Shoal({"status", job_});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no shoal train"));
  EXPECT_THAT(none.err, HasSubstr("checkpoints/logs/coordinator.address"));
  EXPECT_THAT(none.err, HasSubstr("--coordinator"));

  Publish(coordinator_.token());
  coordinator_.Shutdown();
  const Outcome killed = Shoal({"status", job_});
  EXPECT_EQ(killed.code, 1);
  EXPECT_THAT(killed.err, HasSubstr("if its shoal train was killed"));
  EXPECT_THAT(killed.err, Not(HasSubstr(coordinator_.token().secret())));

  std::filesystem::remove(TokenFileIn(LogFolderOf(checkpoints_)));
  EXPECT_THAT(Shoal({"status", "--run", checkpoints_}).err, HasSubstr("coordinator.token"));
}

TEST_F(LocalStatusTest, TheLastRunIsToldFromItsRecord) {
  const std::string record = checkpoints_ + "/record";
  ASSERT_TRUE(CreateDirectories(record).ok());
  const std::string step = R"({"event":"step","time":1,"step":7,"loss":2.5)";
  for (const bool known : {true, false}) {
    const std::string lines =
        step + (known ? R"(,"mfu":0.412})" : "}") + "\n" + R"({"event":"done","step":7})" + "\n";
    ASSERT_TRUE(WriteFileAtomically(record + "/metrics.jsonl", lines).ok());
    EXPECT_THAT(Shoal({"status", job_}).out,
                HasSubstr(known ? "done, step 7, loss 2.5000, mfu 41% (" : "loss 2.5000 ("));
    EXPECT_EQ(nlohmann::json::parse(Shoal({"status", job_, "--json"}).out).contains("mfu"), known);
  }
}

TEST_F(LocalStatusTest, AJobWithACoordinatorOfItsOwnIsAskedThere) {
  ASSERT_TRUE(
      WriteFileAtomically(job_, "model: model\ndata: {train: data.jsonl}\ncluster: {coordinator: " +
                                    coordinator_.address() + "}\n")
          .ok());
  const std::string token_file = folder_ + "/token";
  ASSERT_TRUE(WriteFileAtomically(token_file, coordinator_.token().secret()).ok());
  const Outcome outcome = Shoal({"status", job_, "--token-file", token_file});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("reef"));

  // A job that names the file needs no flag, which counts all the same.
  const auto named = [&](const std::string& file) {
    return WriteFileAtomically(job_, fmt::format("model: model\ndata: {{train: data.jsonl}}\n"
                                                 "cluster: {{coordinator: '{}', token_file: {}}}\n",
                                                 coordinator_.address(), file));
  };
  ASSERT_TRUE(named(token_file).ok());
  EXPECT_THAT(Shoal({"status", job_}).out, HasSubstr("reef"));
  ASSERT_TRUE(named(folder_ + "/absent").ok());
  EXPECT_THAT(Shoal({"status", job_, "--token-file", token_file}).out, HasSubstr("reef"));
  EXPECT_THAT(Shoal({"status", job_}).err, HasSubstr("cannot open " + folder_ + "/absent"));
}

TEST_F(LocalStatusTest, OneRunIsNamed) {
  const Outcome none = Shoal({"status"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--run"));
  EXPECT_EQ(Shoal({"status", job_, "--run", checkpoints_}).code, 2);
  EXPECT_EQ(Shoal({"status", "--coordinator", "127.0.0.1:1", "--run", checkpoints_}).code, 2);
}

}  // namespace
}  // namespace shoal::cli
