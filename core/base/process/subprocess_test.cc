#include "core/base/process/subprocess.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

class ProcessGroupTest : public testing::Test {
 protected:
  Command Shell(const std::string& name, const std::string& script) {
    return {.name = name,
            .arguments = {"/bin/sh", "-c", script},
            .environment = {{"SHOAL_TEST_WORD", "pearl"}},
            .log_file = folder_ + "/" + name + ".log"};
  }

  // Waits for a file with contents; the empty string after five seconds.
  static std::string WaitForFile(const std::string& path) {
    for (int i = 0; i < 500; ++i) {
      auto text = ReadFile(path);
      if (text.ok() && text->ends_with('\n')) {
        return *text;
      }
      RealClock().SleepFor(absl::Milliseconds(10));
    }
    return "";
  }
  static bool Gone(pid_t pid) {
    for (int i = 0; i < 500; ++i) {
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::string word;
      char state = 'X';
      stat >> word >> word >> state;
      if (!stat || state == 'Z' || state == 'X') {
        return true;
      }
      RealClock().SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  const TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
};

TEST_F(ProcessGroupTest, ReportsByNameHowAChildEnded) {
  ProcessGroup group;
  ASSERT_TRUE(group.Start(Shell("three", "exit 3")).ok());
  ASSERT_TRUE(group.Start(Shell("killed", "kill -KILL $$")).ok());
  ASSERT_TRUE(group.Start(Shell("fine", "true")).ok());
  const auto ends = group.WaitForAll(absl::Seconds(10));
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(group.running(), 0u);
  for (const ChildEnd& end : ends) {
    if (end.name == "three") {
      EXPECT_THAT(Describe(end), HasSubstr("exited with status 3"));
    } else if (end.name == "killed") {
      EXPECT_THAT(Describe(end), HasSubstr("was killed by SIGKILL"));
    } else {
      EXPECT_TRUE(end.clean());
    }
  }
}

TEST_F(ProcessGroupTest, LogsAndEnvironmentReachTheChild) {
  ProcessGroup group;
  ASSERT_TRUE(group.Start(Shell("talker", "echo $SHOAL_TEST_WORD; echo oyster >&2; cat")).ok());
  ASSERT_EQ(group.WaitForAll(absl::Seconds(10)).size(), 1u) << "stdin is empty, so cat ends";
  EXPECT_EQ(*ReadFile(folder_ + "/talker.log"), "pearl\noyster\n");
}

TEST_F(ProcessGroupTest, AMissingProgramIsAnErrorThatNamesIt) {
  ProcessGroup group;
  Command program = Shell("ghost", "");
  program.arguments = {"/nonexistent/ghost"};
  const absl::Status status = group.Start(program);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/ghost"));
  EXPECT_EQ(group.running(), 0u);
}

TEST_F(ProcessGroupTest, TakeDownAsksFirstThenKillsInBoundedTime) {
  ProcessGroup group;
  ASSERT_TRUE(
      group.Start(Shell("polite", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"))
          .ok());
  ASSERT_TRUE(
      group.Start(Shell("deaf", "trap '' TERM; echo ready; while :; do sleep 0.02; done")).ok());
  ASSERT_NE(WaitForFile(folder_ + "/polite.log"), "");
  ASSERT_NE(WaitForFile(folder_ + "/deaf.log"), "");
  const absl::Time start = absl::Now();
  const auto ends = group.TakeDown(absl::Seconds(1));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0].name, "polite");
  EXPECT_TRUE(ends[0].clean());
  EXPECT_THAT(Describe(ends[1]), HasSubstr("deaf"));
  EXPECT_THAT(Describe(ends[1]), HasSubstr("SIGKILL"));
}

TEST_F(ProcessGroupTest, ChildrenHaveAGroupOfTheirOwn) {
  ProcessGroup group;
  ASSERT_TRUE(group.Start(Shell("sleeper", "sleep 30")).ok());
  const pid_t pid = group.PidOf("sleeper");
  ASSERT_GT(pid, 0);
  EXPECT_EQ(getpgid(pid), pid) << "so that a Ctrl-C at the terminal does not reach it";
}

TEST_F(ProcessGroupTest, ChildrenStartWithDefaultSignalsAndNoBlockedOnes) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  ProcessGroup group;
  ASSERT_TRUE(group.Start(Shell("sleeper", "exec sleep 30")).ok());
  sigprocmask(SIG_SETMASK, &before, nullptr);
  const auto ends = group.TakeDown(absl::Seconds(10));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_THAT(Describe(ends[0]), HasSubstr("SIGTERM"));
}

TEST_F(ProcessGroupTest, AKilledParentLeavesNoOrphan) {
  const std::string log = folder_ + "/orphan.log";
  const pid_t parent = fork();
  if (parent == 0) {
    ProcessGroup group;
    Command program = Shell("orphan", "echo $$; while :; do sleep 0.05; done");
    if (!group.Start(program).ok()) {
      _exit(1);
    }
    pause();
    _exit(0);
  }
  const std::string text = WaitForFile(log);
  ASSERT_NE(text, "");
  const pid_t child = std::stoi(text);
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(Gone(child));
}

TEST_F(ProcessGroupTest, DestructionKillsWhatStillRuns) {
  pid_t pid = 0;
  {
    ProcessGroup group;
    ASSERT_TRUE(group.Start(Shell("sleeper", "sleep 30")).ok());
    pid = group.PidOf("sleeper");
  }
  EXPECT_TRUE(Gone(pid));
}

TEST_F(ProcessGroupTest, WhatAChildLeftInItsGroupEndsWithIt) {
  ProcessGroup group;
  ASSERT_TRUE(group.Start(Shell("forker", "sleep 30 & echo $!")).ok());
  ASSERT_EQ(group.WaitForAll(absl::Seconds(10)).size(), 1u);
  EXPECT_TRUE(Gone(std::stoi(*ReadFile(folder_ + "/forker.log"))));
}

TEST_F(ProcessGroupTest, TailShowsTheLastLines) {
  const std::string path = folder_ + "/x.log";
  ASSERT_TRUE(WriteFileAtomically(path, "one\ntwo\nthree\n").ok());
  EXPECT_EQ(TailOf(path, 2), "two\nthree");
  EXPECT_EQ(TailOf(path, 9), "one\ntwo\nthree");
  EXPECT_EQ(TailOf(path + ".absent", 9), "");
  ASSERT_TRUE(WriteFileAtomically(path, "").ok());
  EXPECT_EQ(TailOf(path, 9), "");
}

TEST(RunCommandTest, GivesWhatWasPrintedAndSaysHowItFailed) {
  const auto output = RunCommand({.name = "reader",
                                  .arguments = {"sh", "-c", "echo $WHAT; cat; echo why >&2"},
                                  .environment = {{"WHAT", "hello"}},
                                  .input = "from stdin\n"},
                                 absl::Seconds(10));
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(*output, "hello\nfrom stdin\n");
  const absl::Status failed =
      RunCommand({.name = "sh", .arguments = {"sh", "-c", "echo out; echo why >&2; exit 3"}},
                 absl::Seconds(10))
          .status();
  EXPECT_THAT(std::string(failed.message()),
              testing::AllOf(HasSubstr("status 3"), HasSubstr("why")));
  EXPECT_TRUE(absl::IsNotFound(
      RunCommand({.name = "ghost", .arguments = {"no-such-program-here"}}, absl::Seconds(10))
          .status()));
  EXPECT_TRUE(ProgramExists("sh"));
  EXPECT_FALSE(ProgramExists("no-such-program-here"));
}

TEST(RunCommandTest, WhatTakesTooLongIsKilledWithItsChildren) {
  const std::string mark = testing::TempDir() + "/run_command_" + std::to_string(getpid());
  const absl::Status late =
      RunCommand(
          {.name = "sh", .arguments = {"sh", "-c", "(sleep 1; touch " + mark + ") & sleep 60"}},
          absl::Milliseconds(100))
          .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  RealClock().SleepFor(absl::Milliseconds(1200));
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST(SubprocessTest, InheritsNoDescriptorButItsInputAndOutput) {
  const int open_here = dup(STDERR_FILENO);  // without O_CLOEXEC
  const auto output =
      RunCommand({.name = "ls", .arguments = {"ls", "/proc/self/fd"}}, absl::Seconds(10));
  close(open_here);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(*output, "0\n1\n2\n3\n") << "3 is the folder that ls reads";
}

TEST(SubprocessTest, OutputCanBeReadWhileItRuns) {
  const auto started = Subprocess::Start(
      {.name = "sh", .arguments = {"/bin/sh", "-c", "echo ready; echo so >&2; exec sleep 30"}});
  ASSERT_TRUE(started.ok()) << started.status();
  Subprocess* const child = started->get();
  for (int i = 0; i < 500 && child->Errors().empty(); ++i) {
    RealClock().SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(child->Output(), "ready\n");
  EXPECT_EQ(child->Errors(), "so\n");
  EXPECT_TRUE(child->Running());
  EXPECT_FALSE(child->Wait(absl::ZeroDuration()).has_value());
  child->Signal(SIGTERM);
  const auto end = child->Wait(absl::Seconds(10));
  ASSERT_TRUE(end.has_value());
  EXPECT_THAT(Describe(*end), HasSubstr("SIGTERM"));
  EXPECT_FALSE(child->Running());
  EXPECT_FALSE(child->Wait(absl::ZeroDuration()).has_value()) << "it is told once";
}

}  // namespace
}  // namespace shoal
