#include "cli/checkpoint_command.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "cli/testing/command_line.h"
#include "core/base/file.h"
#include "core/job/job.h"
#include "core/model/partition.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint_directory.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

// Two complete checkpoints of a tiny model.
class CheckpointCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/checkpoint_command_" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(CreateDirectories(folder_).ok());
    ASSERT_EQ(Shoal({"model", "init", "--shape", "tiny", "--output", folder_ + "/model"}).code, 0);
    Write(5, 0.25F);
    Write(10, 0.5F);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(int64_t step, float value) {
    const plan::ModelSpec spec = *plan::NamedShape("tiny");
    const auto partitions = plan::BuildPartitions(plan::BuildUnits(spec), 1 << 20);
    auto writing = server::CheckpointDirectory::Take(directory());
    const auto path = writing->Begin(step);
    ASSERT_TRUE(path.ok()) << path.status();
    auto writer = server::ShardWriter::Create(*path, 0, step, partitions);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const plan::PartitionSpec& partition : partitions) {
      const std::vector<float> values(static_cast<size_t>(partition.count), value);
      ASSERT_TRUE((*writer)->Add(values, values, values).ok());
    }
    const auto entry = (*writer)->Finish();
    ASSERT_TRUE(entry.ok()) << entry.status();
    plan::Job job;
    job.model = folder_ + "/model";
    job.data.train = "train.jsonl";
    job.cluster.local = true;
    job.cluster.servers = job.cluster.workers = 1;
    server::Manifest manifest;
    manifest.step = step;
    manifest.loss = 1.5;
    manifest.spec = spec;
    manifest.shards = {*entry};
    const absl::Status written = writing->Complete(manifest, plan::ToYaml(job)).status();
    ASSERT_TRUE(written.ok()) << written;
  }
  std::string directory() const { return folder_ + "/checkpoints"; }
  std::string folder_;
};

TEST_F(CheckpointCommandTest, ListsTheCompleteOnes) {
  std::filesystem::create_directories(directory() + "/step-00000020");  // incomplete: no manifest
  const Outcome outcome = Shoal({"checkpoint", "list", directory(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::vector<int> steps;
  for (std::string line; std::getline(lines, line);) {
    steps.push_back(nlohmann::json::parse(line)["step"]);
  }
  EXPECT_THAT(steps, testing::ElementsAre(5, 10));
  EXPECT_THAT(Shoal({"checkpoint", "list", directory()}).out, HasSubstr("step-00000005"));
  EXPECT_EQ(Shoal({"checkpoint", "list", folder_ + "/absent"}).code, 2);
}

TEST_F(CheckpointCommandTest, VerifyNamesTheDamagedFile) {
  EXPECT_EQ(Shoal({"checkpoint", "verify", directory()}).code, 0);
  std::string shard;
  for (const auto& entry : std::filesystem::directory_iterator(directory() + "/step-00000010")) {
    if (entry.file_size() > 10000) {
      shard = entry.path().string();
    }
  }
  ASSERT_FALSE(shard.empty());
  std::string bytes = *ReadFile(shard);
  bytes[bytes.size() - 100] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(shard, bytes).ok());
  const Outcome outcome = Shoal({"checkpoint", "verify", directory() + "/step-00000010"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.out, HasSubstr(shard));
  EXPECT_THAT(outcome.err, HasSubstr("damaged"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
  EXPECT_EQ(Shoal({"checkpoint", "verify", directory() + "/step-00000005"}).code, 0);
  EXPECT_EQ(Shoal({"checkpoint", "verify", directory(), "--json"}).code, 2) << "all are verified";
}

TEST_F(CheckpointCommandTest, HashIsOneLineOfTheNewest) {
  const Outcome newest = Shoal({"checkpoint", "hash", directory()});
  ASSERT_EQ(newest.code, 0) << newest.err;
  EXPECT_THAT(newest.out, testing::MatchesRegex("[0-9a-f]{32}\n"));
  EXPECT_EQ(Shoal({"checkpoint", "hash", directory() + "/step-00000010"}).out, newest.out);
  EXPECT_NE(Shoal({"checkpoint", "hash", directory() + "/step-00000005"}).out, newest.out);
  EXPECT_EQ(Shoal({"checkpoint", "hash", folder_ + "/model"}).code, 2);
}

TEST_F(CheckpointCommandTest, ExportTakesTheNewestAndMakesAModel) {
  const Outcome outcome =
      Shoal({"checkpoint", "export", directory(), "--output", folder_ + "/exported", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["step"], 10);
  EXPECT_EQ(Shoal({"model", "show", folder_ + "/exported"}).code, 0);
  EXPECT_EQ(Shoal({"checkpoint", "export", directory(), "--output", folder_ + "/exported"}).code, 2)
      << "never over a model that is there";
  EXPECT_EQ(
      Shoal({"checkpoint", "export", folder_ + "/model", "--output", folder_ + "/other"}).code, 2)
      << "not a checkpoint";
}

}  // namespace
}  // namespace shoal::cli
