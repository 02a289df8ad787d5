// What scripts/bundle.sh makes of the built programs: a folder that trains from wherever it lies,
// with its own libraries and of the machine's no others than glibc's.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "core/base/file.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/program.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLimit = absl::Seconds(60);

bool HasTools() {
  return Program({"/bin/sh", "-c", "command -v bash readelf objdump strip ldd dpkg-query"})
             .Wait(kLimit)
             .exit_code == 0;
}

// In an empty environment and in another folder, with the loader's log at loader.PID.
ProgramResult RunIn(const std::string& folder, const std::string& loader_log,
                    std::vector<std::string> arguments) {
  std::vector<std::string> command = {"/usr/bin/env",
                                      "-i",
                                      "-C",
                                      folder,
                                      "PATH=/usr/bin:/bin",
                                      "TMPDIR=" + folder,
                                      "LD_DEBUG=libs",
                                      "LD_DEBUG_OUTPUT=" + loader_log};
  command.insert(command.end(), std::make_move_iterator(arguments.begin()),
                 std::make_move_iterator(arguments.end()));
  return Program(command).Wait(kLimit);
}

// What the loader initialised in any process, the programs' own libraries apart.
std::set<std::string> LoadedFromElsewhere(const std::string& loader_logs,
                                          const std::string& bundle) {
  const std::regex initialised("calling init: (/.*)");
  std::set<std::string> paths;
  for (const auto& entry : fs::directory_iterator(loader_logs)) {
    std::ifstream log(entry.path());
    std::smatch match;
    for (std::string line; std::getline(log, line);) {
      if (std::regex_search(line, match, initialised)) {
        paths.insert(fs::weakly_canonical(match[1].str()).string());
      }
    }
  }
  std::erase_if(paths, [&](const std::string& path) { return absl::StartsWith(path, bundle); });
  return paths;
}

class Bundle : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "instrumented programs are not for bundles";
#endif
    if (!HasTools()) {
      GTEST_SKIP() << "bash, binutils or dpkg-query is missing";
    }
    folder_ = fs::canonical(FreshDirectory("bundle")).string();
    const ProgramResult made =
        Program({"/bin/bash", SHOAL_SOURCE_DIRECTORY "/scripts/bundle.sh", "--no-build", "--build",
                 fs::path(BinDirectory()).parent_path().string(), "--output", folder_ + "/made"})
            .Wait(kLimit);
    ASSERT_EQ(made.exit_code, 0) << made.errors;
    // It does not stay where it was made.
    fs::rename(folder_ + "/made", bundle_ = folder_ + "/elsewhere");
    fs::create_directory(folder_ + "/work");
    fs::create_directory(folder_ + "/loader");
  }
  void TearDown() override { fs::remove_all(folder_); }

  ProgramResult Shoal(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), bundle_ + "/bin/shoal");
    return RunIn(folder_ + "/work", folder_ + "/loader/log", std::move(arguments));
  }

  std::string folder_, bundle_;
};

TEST_F(Bundle, TrainsFromAnotherPlaceWithItsOwnLibraries) {
  const ProgramResult version = Shoal({"--version"});
  ASSERT_EQ(version.exit_code, 0) << version.errors;
  EXPECT_THAT(version.output, HasSubstr("shoal "));

  const nlohmann::json sample(std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8});
  const nlohmann::json line = {{"input_ids", sample}, {"labels", sample}};
  ASSERT_TRUE(
      WriteFileAtomically(folder_ + "/work/train.jsonl", line.dump() + "\n" + line.dump() + "\n")
          .ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/work/job.yaml", R"(
model: model
data: {train: train.jsonl, max_sequence_tokens: 16, microbatch_tokens: 16}
train: {steps: 2, minibatch_samples: 2, learning_rate: 1e-3, warmup_steps: 0}
cluster: {local: {servers: 1, workers: 1}}
checkpoint: {directory: checkpoints, every_steps: 2}
)")
                  .ok());
  const ProgramResult model = Shoal({"model", "init", "--shape", "tiny", "--output", "model"});
  ASSERT_EQ(model.exit_code, 0) << model.errors;
  const ProgramResult train = Shoal({"train", "job.yaml", "--json"});
  ASSERT_EQ(train.exit_code, 0) << train.output << train.errors;
  EXPECT_THAT(train.output, HasSubstr("\"done\""));

  // Of shoal, coordinator, server and worker.
  const auto logs = fs::directory_iterator(folder_ + "/loader");
  EXPECT_GE(std::distance(begin(logs), end(logs)), 4);
  const std::regex of_glibc(
      "/(usr/)?lib(64)?/(x86_64-linux-gnu/)?"
      "(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libanl|libnss_[a-z]+)"
      "\\.so\\.[0-9]+");
  std::set<std::string> others = LoadedFromElsewhere(folder_ + "/loader", bundle_ + "/lib/");
  EXPECT_FALSE(others.empty()) << "the loader's log says nothing";
  std::erase_if(others, [&](const std::string& path) { return std::regex_match(path, of_glibc); });
  EXPECT_THAT(others, IsEmpty());
}

TEST_F(Bundle, TheManifestSaysWhatIsInIt) {
  std::ifstream manifest(bundle_ + "/share/manifest.tsv");
  std::string line;
  std::getline(manifest, line);
  EXPECT_EQ(line, "file\tbytes\tpackage\tversion");
  std::set<std::string> named;
  while (std::getline(manifest, line)) {
    const std::string file = line.substr(0, line.find('\t'));
    named.insert(file);
    std::error_code error;
    const auto bytes = fs::file_size(bundle_ + "/" + file, error);
    EXPECT_FALSE(error) << file;
    EXPECT_THAT(line, HasSubstr(fmt::format("\t{}\t", bytes)));
  }
  for (const char* folder : {"bin", "lib"}) {
    for (const auto& entry : fs::directory_iterator(bundle_ + "/" + folder)) {
      const std::string file = fmt::format("{}/{}", folder, entry.path().filename().string());
      EXPECT_EQ(named.count(file), 1u) << file;
    }
  }
}

TEST_F(Bundle, NothingElseIsOverwritten) {
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/work/mine", "mine").ok());
  const ProgramResult refused = Program({"/bin/bash", SHOAL_SOURCE_DIRECTORY "/scripts/bundle.sh",
                                         "--no-build", "--output", folder_ + "/work"})
                                    .Wait(kLimit);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.errors, HasSubstr("is no bundle"));
  EXPECT_TRUE(fs::exists(folder_ + "/work/mine"));
}

}  // namespace
}  // namespace shoal::testing
