// Two runs in one directory, and files that go wrong.
#include "server/checkpoint/checkpoint_directory.h"

#include <filesystem>
#include <fstream>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/model/partition.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CheckpointDirectoryTest : public ::testing::Test {
 protected:
  // One server's shard, with `value` everywhere.
  Manifest WriteShard(const std::string& folder, int64_t step, float value) const {
    const auto partitions = plan::BuildPartitions(plan::BuildUnits(spec_), 1 << 20);
    auto writer = ShardWriter::Create(folder, 0, step, partitions).value();
    for (const plan::PartitionSpec& partition : partitions) {
      const std::vector<float> values(static_cast<size_t>(partition.count), value);
      EXPECT_TRUE(writer->Add(values, values, values).ok());
    }
    return {.step = step, .loss = 1, .spec = spec_, .shards = {writer->Finish().value()}};
  }
  absl::StatusOr<std::string> Write(CheckpointDirectory& run, int64_t step, float value) const {
    SHOAL_ASSIGN_OR_RETURN(const std::string folder, run.Begin(step));
    return run.Complete(WriteShard(folder, step, value), "model: x\n");
  }
  static float ValueIn(const std::string& checkpoint) {
    std::vector<float> out(1);
    EXPECT_TRUE((*Checkpoint::Open(checkpoint))->Read(Section::kMaster, 0, 0, out).ok());
    return out[0];
  }
  const std::string& directory() const { return folder_.path(); }

  const TemporaryFolder folder_;
  const plan::ModelSpec spec_ = *plan::NamedShape("tiny");
};

TEST_F(CheckpointDirectoryTest, TermsGrow) {
  EXPECT_EQ(CheckpointDirectory::Take(directory())->term(), 1);
  EXPECT_EQ(CheckpointDirectory::Take(directory())->term(), 2);
  EXPECT_EQ(CheckpointDirectory::Take(directory() + "/not/there/yet")->term(), 1);
}

TEST_F(CheckpointDirectoryTest, WhoTakesItMakesRoomOfWhatIsNotComplete) {
  auto first = CheckpointDirectory::Take(directory());
  ASSERT_OK(Write(*first, 2, 1).status());
  const auto unfinished = first->Begin(3);
  ASSERT_OK(unfinished.status());
  WriteShard(*unfinished, 3, 1);
  fs::create_directories(CheckpointPath(directory(), 4));  // of a release that wrote in place

  ASSERT_OK(CheckpointDirectory::Take(directory()).status());
  EXPECT_THAT(*UnfinishedCheckpoints(directory()), ::testing::IsEmpty());
  EXPECT_EQ(ListCheckpoints(directory())->size(), 1u);
}

TEST_F(CheckpointDirectoryTest, WhoeverTookItLastWritesAndTheOtherHarmsNothing) {
  auto first = CheckpointDirectory::Take(directory());
  ASSERT_OK(Write(*first, 2, 1).status());
  const auto early = first->Begin(3);
  ASSERT_OK(early.status());
  const Manifest manifest = WriteShard(*early, 3, 1);

  auto second = CheckpointDirectory::Take(directory());
  const auto path = Write(*second, 3, 2);
  ASSERT_OK(path.status());
  for (const absl::Status& status : {first->Complete(manifest, "model: x\n").status(),
                                     first->Begin(4).status(), first->Prune(1)}) {
    EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("(term 2) has taken this folder from run"));
  }
  ASSERT_OK(first->Discard(3));
  EXPECT_THAT(VerifyCheckpoint(*path), ::testing::IsEmpty());
  EXPECT_EQ(ValueIn(*path), 2);
  EXPECT_EQ(ListCheckpoints(directory())->size(), 2u);
}

TEST_F(CheckpointDirectoryTest, TheBestIsKeptBesideTheNewest) {
  auto run = CheckpointDirectory::Take(directory());
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(Write(*run, step, 1).status());
  }
  const auto left = [&] {
    std::vector<int64_t> steps;
    const std::vector<CheckpointInfo> complete = *ListCheckpoints(directory());
    for (const CheckpointInfo& info : complete) {
      steps.push_back(info.step);
    }
    return steps;
  };
  ASSERT_OK(run->Prune(2, {1}));
  EXPECT_THAT(left(), ::testing::ElementsAre(1, 3, 4));
  ASSERT_OK(run->Prune(1, {3, kNoStep}));
  EXPECT_THAT(left(), ::testing::ElementsAre(3, 4));
  ASSERT_OK(run->Prune(1));
  EXPECT_THAT(left(), ::testing::ElementsAre(4));
}

TEST_F(CheckpointDirectoryTest, ShardsAreLookedAtBeforeTheManifest) {
  auto run = CheckpointDirectory::Take(directory());
  const auto folder = run->Begin(5);
  ASSERT_OK(folder.status());
  const Manifest manifest = WriteShard(*folder, 5, 1);
  fs::resize_file(*folder + "/server-0000.shard", 4096);
  const absl::Status damaged = run->Complete(manifest, "model: x\n").status();
  EXPECT_THAT(std::string(Message(damaged)), HasSubstr("server-0000.shard: damaged: 4096 bytes"));
  fs::remove(*folder + "/server-0000.shard");
  EXPECT_FALSE(run->Complete(manifest, "model: x\n").ok());
  EXPECT_TRUE(ListCheckpoints(directory())->empty());
  ASSERT_OK(run->Discard(5));
  EXPECT_TRUE(UnfinishedCheckpoints(directory())->empty());
}

TEST_F(CheckpointDirectoryTest, ALaterLifeOfAJobKeepsTheFolderFromAnEarlierOne) {
  const auto first = CheckpointDirectory::Take(directory(), {.job = "job-a", .term = 1});
  ASSERT_OK(CheckpointDirectory::Take(directory(), {.job = "job-a", .term = 2}).status());
  EXPECT_TRUE(absl::IsAborted(first->CheckOwned())) << first->CheckOwned();
  const absl::Status again =
      CheckpointDirectory::Take(directory(), {.job = "job-a", .term = 1}).status();
  EXPECT_TRUE(absl::IsAborted(again)) << again;
  EXPECT_THAT(std::string(Message(again)), HasSubstr("in term 2 of the coordinator"));
  // Also without having taken it.
  EXPECT_TRUE(
      absl::IsAborted(CheckpointDirectory::CheckNewest(directory(), {.job = "job-a", .term = 1})));
  ASSERT_OK(CheckpointDirectory::CheckNewest(directory(), {.job = "job-a", .term = 2}));
  ASSERT_OK(CheckpointDirectory::CheckNewest(directory(), {.job = "job-b", .term = 1}));
  ASSERT_OK(CheckpointDirectory::CheckNewest(directory() + "/not/there/yet", {"job-a", 1}));
  ASSERT_OK(CheckpointDirectory::Take(directory(), {.job = "job-b", .term = 1}).status());
  EXPECT_TRUE(absl::IsAlreadyExists(first->CheckOwned())) << first->CheckOwned();
}

TEST_F(CheckpointDirectoryTest, AMalformedOwnerFileIsNamed) {
  for (const std::string text : {"", "{}", "[1]", R"({"run": 3, "term": "x"})"}) {
    std::ofstream(directory() + "/owner") << text;
    EXPECT_THAT(std::string(Message(CheckpointDirectory::Take(directory()).status())),
                HasSubstr(directory() + "/owner"));
  }
}

}  // namespace
}  // namespace shoal::server
