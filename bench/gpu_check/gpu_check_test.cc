// scripts/gpu-check.sh and the program that it runs: over the fake GPU, with parts that hang or
// crash, and on a machine without a driver.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "core/base/file.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/program.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(150);
constexpr const char* kScript = SHOAL_SOURCE_DIRECTORY "/scripts/gpu-check.sh";

std::string FakeProgram() {
  return (fs::path(BinDirectory()).parent_path() / "tests" / "gpu_check_fake").string();
}

class GpuCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = FreshDirectory("gpu-check");
    fs::create_directories(folder_ + "/bundle/bin");
    fs::create_directories(folder_ + "/bundle/share");
    if (!TestData().empty()) {
      fs::create_directory_symlink(TestData(), folder_ + "/bundle/share/data");
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Writes the bundle's bin/gpu_check: the fake one, preceded by these lines of shell.
  void WriteProgram(const std::string& before) const {
    const std::string path = folder_ + "/bundle/bin/gpu_check";
    std::ofstream(path) << "#!/bin/sh\n" << before << "\nexec " << FakeProgram() << " \"$@\"\n";
    chmod(path.c_str(), 0755);
  }
  // Programs in folder_ come before the machine's.
  std::vector<std::string> Command(const std::vector<std::string>& more) const {
    std::vector<std::string> command = {
        "/usr/bin/env", "PATH=" + folder_ + "/path:/usr/local/bin:/usr/bin:/bin",
        "/bin/bash",    kScript,
        "--bundle",     folder_ + "/bundle",
        "--output",     folder_ + "/out",
        "--small"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  ProgramResult RunScript(const std::vector<std::string>& more = {}) const {
    return Program(Command(more)).Wait(kLimit);
  }
  // The archive's names, one per line; empty if it is missing.
  static std::string NamesIn(const std::string& archive) {
    return Program({"/usr/bin/env", "tar", "-tzf", archive}).Wait(kLimit).output;
  }
  // The output file with that extension; empty if it is missing.
  std::string Written(const std::string& extension) const {
    for (const auto& entry : fs::directory_iterator(folder_ + "/out")) {
      if (entry.path().extension() == extension) {
        return *ReadFile(entry.path().string());
      }
    }
    return "";
  }

  std::string folder_;
};

TEST_F(GpuCheck, RunsEveryPartOverTheFakeGpu) {
  WriteProgram("");
  const ProgramResult run = RunScript();
  EXPECT_EQ(run.exit_code, 0) << run.output << Written(".log");
  const auto json = nlohmann::json::parse(Written(".json"), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_GE(json["parts"].size(), 6u);
  for (const auto& part : json["parts"]) {
    // Worker processes have no fake GPU.
    const bool skipped = part["part"] == "service" || part["part"] == "served" ||
                         (part["part"] == "golden" && TestData().empty());
    EXPECT_EQ(part["state"], skipped ? "skipped" : "done") << part["part"] << part["why"];
  }
  EXPECT_THAT(Written(".md"), HasSubstr("# A worker on a GPU"));
  EXPECT_THAT(run.output, HasSubstr("0 parts failed"));
}

TEST_F(GpuCheck, SaysHowPyTorchEndedAndWhatTheGpuDid) {
  fs::create_directories(folder_ + "/path");
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/path/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << text;
    chmod(path.c_str(), 0755);
  };
  write("python3",
        "case \"$*\" in *--prepare*) echo prepared ;; *torch_baseline*) echo boom >&2; exit 7 ;; "
        "esac\n");
  // The report shows the sample that drew more power.
  write(
      "nvidia-smi",
      "case \"$*\" in *-l*) while sleep 0.05; do echo '1500, 2600, 50, 300.5, 10, 20, none'; echo "
      "'1980, 3201, 60, 650.5, 10, 99, none'; done ;; *) echo 'A GPU, 580' ;; esac\n");
  WriteProgram("case \"$*\" in *--only*) sleep 0.3; exit 0 ;; esac");
  const ProgramResult run = RunScript();
  EXPECT_EQ(run.exit_code, 1) << run.output;  // parts without results
  EXPECT_THAT(run.output, HasSubstr("torch: exit code 7: boom"));
  EXPECT_THAT(Written(".md"), HasSubstr("Not measured: exit code 7: boom."));
  EXPECT_THAT(Written(".md"), HasSubstr("nvidia-smi (name, driver"));
  EXPECT_THAT(Written(".md"), HasSubstr("| machine | 1980 | 3201 | 60 | 650.5 |"));
  EXPECT_THAT(Written(".log"), HasSubstr("prepared"));
}

TEST_F(GpuCheck, APartThatHangsOrCrashesLosesNoOther) {
  WriteProgram(
      "case \"$*\" in *'--only ops'*) kill -SEGV $$ ;; *'--only golden'*|*'--only train'*) exec "
      "sleep 1000 ;; esac");
  const ProgramResult run = RunScript({"--seconds", "20"});
  EXPECT_EQ(run.exit_code, 1) << run.output;
  const std::string report = Written(".md");
  EXPECT_THAT(report, HasSubstr("| machine | done |"));
  EXPECT_THAT(report, HasSubstr("| ops | FAILED |"));
  EXPECT_THAT(report, HasSubstr("| golden | FAILED |"));
  EXPECT_THAT(report, HasSubstr("## Ceilings"));
}

TEST_F(GpuCheck, OnePartIsEnoughAndNeedsNoData) {
  WriteProgram("");
  fs::remove(folder_ + "/bundle/share/data");
  const ProgramResult run = RunScript({"--only", "golden"});
  EXPECT_EQ(run.exit_code, 0) << run.output << Written(".log");
  EXPECT_THAT(Written(".md"), HasSubstr("| golden | skipped |"));
  EXPECT_THAT(Written(".md"), Not(HasSubstr("| ops |")));
  EXPECT_THAT(run.output, HasSubstr("-gpu-golden.md"));
}

TEST_F(GpuCheck, LeavesOneArchiveOfAll) {
  WriteProgram("");
  const std::string archive = folder_ + "/far/all.tar.gz";
  const ProgramResult run = RunScript({"--only", "golden", "--archive", archive});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.errors;
  const std::string names = NamesIn(archive);
  EXPECT_THAT(names, HasSubstr("-gpu-golden.md\n"));
  EXPECT_THAT(names, HasSubstr("out/gpu-check-golden.log\n"));
  EXPECT_THAT(names, HasSubstr("parts/golden.json\n"));
  EXPECT_EQ(RunScript({"--archive", folder_ + "/out/all.tar.gz"}).exit_code, 2)
      << "would hold itself";
}

TEST_F(GpuCheck, TheArchiveIsThereWhereTheCheckIsKilled) {
  WriteProgram("case \"$*\" in *'--only ops'*) exec sleep 60 ;; esac");
  const std::string archive = folder_ + "/all.tar.gz";
  const Program check(Command({"--no-torch", "--archive", archive}));
  for (const absl::Time end = absl::Now() + kLimit; absl::Now() < end && !fs::exists(archive);) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  check.Signal(SIGKILL);
  EXPECT_THAT(NamesIn(archive), HasSubstr("parts/machine.json\n"));
}

TEST_F(GpuCheck, SaysHowMuchMemoryPartsPlanWith) {
  WriteProgram("");
  EXPECT_EQ(RunScript({"--only", "machine"}).exit_code, 0);
  EXPECT_THAT(Written(".md"),
              ContainsRegex("Memory of the host that parts plan with: [0-9]+ MiB, "));
  std::vector<std::string> command = Command({"--only", "machine"});
  command.insert(command.begin() + 1, "SHOAL_HOST_MEMORY=5GiB");
  const ProgramResult run = Program(command).Wait(kLimit);
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(Written(".md"), HasSubstr("plan with: 5GiB, as SHOAL_HOST_MEMORY says."));
  EXPECT_THAT(run.output, Not(HasSubstr("hint"))) << "somebody has said it";
}

TEST_F(GpuCheck, SaysWhereThereIsNoGpu) {
  const ProgramResult run =
      Program({BinDirectory() + "/gpu_check", "--only", "machine"}).Wait(kLimit);
  if (run.exit_code == 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  EXPECT_EQ(run.exit_code, 3) << run.errors;
  EXPECT_THAT(run.errors, HasSubstr("no GPU"));
  fs::copy_file(BinDirectory() + "/gpu_check", folder_ + "/bundle/bin/gpu_check");
  const ProgramResult script = RunScript();
  EXPECT_EQ(script.exit_code, 3) << script.output;
  EXPECT_THAT(script.errors, HasSubstr("no GPU"));
  EXPECT_THAT(Written(".md"), "");
}

TEST_F(GpuCheck, ShapesAreForAnyMachine) {
  const ProgramResult run =
      Program({BinDirectory() + "/gpu_check", "--shapes", folder_ + "/shapes.json"}).Wait(kLimit);
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  const auto shapes = nlohmann::json::parse(*ReadFile(folder_ + "/shapes.json"), nullptr, false);
  EXPECT_EQ(shapes["cases"][2]["case"], "7b, 4096 tokens");
  EXPECT_EQ(shapes["cases"][2]["shape"]["hidden"], 3584);
}

TEST_F(GpuCheck, RefusesWhatItDoesNotKnow) {
  WriteProgram("");
  EXPECT_EQ(RunScript({"--fast"}).exit_code, 2);
  const ProgramResult part = Program({FakeProgram(), "--only", "trane"}).Wait(kLimit);
  EXPECT_EQ(part.exit_code, 1);
  EXPECT_THAT(part.errors, HasSubstr("machine, ops, golden"));
}

}  // namespace
}  // namespace shoal::testing
