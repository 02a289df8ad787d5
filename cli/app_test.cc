#include "cli/app.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cli/testing/command_line.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::vector<std::vector<std::string>>& Commands() {
  static const std::vector<std::vector<std::string>> commands = {{"train"},
                                                                 {"generate"},
                                                                 {"eval"},
                                                                 {"plan"},
                                                                 {"simulate"},
                                                                 {"model", "init"},
                                                                 {"model", "show"},
                                                                 {"data", "synth"},
                                                                 {"data", "tokenizer"},
                                                                 {"data", "prepare"},
                                                                 {"data", "inspect"},
                                                                 {"checkpoint", "list"},
                                                                 {"checkpoint", "verify"},
                                                                 {"checkpoint", "export"},
                                                                 {"status"},
                                                                 {"doctor"},
                                                                 {"bench", "transport"},
                                                                 {"bench", "store"},
                                                                 {"version"},
                                                                 {"completion"}};
  return commands;
}

TEST(App, HelpListsEveryCommand) {
  const Outcome run = Shoal({"--help"});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.err, IsEmpty());
  for (const auto& command : Commands()) {
    EXPECT_THAT(run.out, HasSubstr("\n  " + command.front() + " "));
  }
}

TEST(App, EveryCommandHasHelpWithAnExampleOfItself) {
  for (auto command : Commands()) {
    std::string name = "shoal";
    for (const std::string& word : command) {
      name += " " + word;
    }
    command.push_back("--help");
    const Outcome run = Shoal(command);
    EXPECT_EQ(run.code, 0) << name;
    EXPECT_THAT(run.out, HasSubstr("Example:\n  " + name)) << run.out;
    EXPECT_THAT(run.err, IsEmpty());
  }
}

TEST(App, VersionIsData) {
  const Outcome run = Shoal({"--version"});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, testing::MatchesRegex("shoal [0-9]+\\.[0-9]+\\.[0-9]+\\+[0-9a-f]{8}\n"));
  EXPECT_EQ(Shoal({"version"}).out, run.out);
}

// As bash does it, for words so far and the one under way.
TEST(App, BashCompletesCommandsAndOptions) {
  const std::string script = ::testing::TempDir() + "/completion.bash";
  ASSERT_TRUE(WriteFileAtomically(script, Shoal({"completion", "bash"}).out).ok());
  const auto complete = [&script](const std::string& words) {
    const std::string command = fmt::format(
        "bash -c 'source {}; COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shoal; "
        "echo ${{COMPREPLY[@]}}'",
        script, words);
    FILE* const pipe = popen(command.c_str(), "r");
    char line[4096] = {};
    EXPECT_NE(fgets(line, sizeof(line), pipe), nullptr) << command;
    EXPECT_EQ(pclose(pipe), 0);
    return std::string(line);
  };
  EXPECT_EQ(complete("shoal gen"), "generate\n");
  EXPECT_EQ(complete("shoal data ins"), "inspect\n");
  EXPECT_EQ(complete("shoal data inspect --minib"), "--minibatch-samples\n");
  EXPECT_EQ(complete("shoal train job.yaml --over"), "--overwrite\n");
  EXPECT_EQ(complete("shoal train --fault"), "\n") << "hidden";
}

// With what zsh's completion calls.
TEST(App, ZshCompletesThemToo) {
  if (std::system("command -v zsh >/dev/null") != 0) {
    GTEST_SKIP() << "there is no zsh";
  }
  const std::string script = ::testing::TempDir() + "/completion.zsh";
  ASSERT_TRUE(WriteFileAtomically(script, Shoal({"completion", "zsh"}).out).ok());
  const auto complete = [&script](const std::string& line) {
    const std::string command = fmt::format(
        "zsh -fc 'compdef() {{ }}; compadd() {{ shift; print -- $@ }}; _files() {{ print files }}; "
        "source {}; words=({}); CURRENT=$#words; PREFIX=$words[-1]; _shoal'",
        script, line);
    FILE* const pipe = popen(command.c_str(), "r");
    std::string text(4096, '\0');
    text.resize(fread(text.data(), 1, text.size(), pipe));
    EXPECT_EQ(pclose(pipe), 0) << command;
    return text;
  };
  EXPECT_THAT(complete("shoal gen"), HasSubstr("generate"));
  EXPECT_THAT(complete("shoal data ins"), testing::AllOf(HasSubstr("inspect"), HasSubstr("files")));
  EXPECT_THAT(complete("shoal data inspect --minib"),
              testing::AllOf(HasSubstr("--minibatch-samples"), Not(HasSubstr("files"))));
}

TEST(App, UsageErrorsAreOneLineAndExitCodeTwo) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"no-such-command"},
                                             {"doctor", "--no-such-option"},
                                             {"doctor", "job.yaml", "surplus"}}) {
    const Outcome run = Shoal(arguments);
    EXPECT_EQ(run.code, 2);
    EXPECT_THAT(run.out, IsEmpty());
    EXPECT_THAT(run.err, HasSubstr("shoal: error: "));
    EXPECT_THAT(run.err, HasSubstr("--help"));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(App, WhatIsMisspeltIsNamedWithTheNearest) {
  const auto error = [](const std::vector<std::string>& arguments) { return Shoal(arguments).err; };
  EXPECT_EQ(error({"trian", "job.yaml"}),
            "shoal: error: unknown command 'trian'; did you mean train? (see shoal --help)\n");
  EXPECT_EQ(
      error({"data", "inspekt"}),
      "shoal: error: unknown command 'inspekt'; did you mean inspect? (see shoal data --help)\n");
  EXPECT_EQ(
      error({"train", "--step=3", "job.yaml"}),
      "shoal: error: unknown option --step=3; did you mean --steps? (see shoal train --help)\n");
  EXPECT_EQ(error({"train", "job.yaml", "--resumee"}),
            "shoal: error: unknown option --resumee; did you mean --resume? (see shoal train "
            "--help)\n");
  EXPECT_EQ(error({"-x"}), "shoal: error: unknown option -x (see shoal --help)\n");
}

TEST(App, WhatIsLikeNothingGetsNoSuggestion) {
  const Outcome command = Shoal({"xyzzy"});
  EXPECT_THAT(command.err, HasSubstr("unknown command 'xyzzy'; known are train, generate,"));
  EXPECT_EQ(Shoal({"train", "job.yaml", "--distributed"}).err,
            "shoal: error: unknown option --distributed (see shoal train --help)\n");
}

TEST(App, NumbersThatAreTooSmallAreNamedWithTheirBound) {
  EXPECT_EQ(Shoal({"train", "job.yaml", "--steps", "0"}).err,
            "shoal: error: --steps: is '0', expected an integer of at least 1 (see shoal train "
            "--help)\n");
  EXPECT_THAT(Shoal({"plan", "job.yaml", "--steps", "x"}).err,
              HasSubstr("is 'x', expected an integer of at least 1"));
  EXPECT_THAT(Shoal({"generate", "--model", "m", "--prompt", "p", "--temperature", "-1.5"}).err,
              HasSubstr("is '-1.5', expected a number of at least 0"));
}

TEST(App, HelpIsACommandToo) {
  EXPECT_EQ(Shoal({"help"}).out, Shoal({"--help"}).out);
  EXPECT_EQ(Shoal({"help", "data", "inspect"}).out, Shoal({"data", "inspect", "--help"}).out);
  EXPECT_THAT(Shoal({"help", "data", "inspect"}).out, HasSubstr("--template"));
  EXPECT_EQ(Shoal({"help"}).code, 0);
}

TEST(App, NothingAskedShowsHelpOnStderrAndFails) {
  const Outcome run = Shoal({});
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("doctor"));
}

TEST(ExitCodes, WhatTheUserGaveIsTwoWhatHappenedIsOne) {
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError("")), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeFor(absl::DataLossError("")), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("")), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), ExitCode::kFailure);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), ExitCode::kFailure);
  EXPECT_EQ(ExitCodeFor(absl::InternalError("")), ExitCode::kFailure);
}

}  // namespace
}  // namespace shoal::cli
