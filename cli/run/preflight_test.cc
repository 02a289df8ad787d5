#include "cli/run/preflight.h"

#include <filesystem>
#include <fstream>

#include "cli/run/command.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/model/adapters.h"
#include "core/model/partition.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace shoal::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PreflightTest : public ::testing::Test {
 protected:
  PreflightTest() {
    job_.model = "/model";
    job_.data.train = "/data/a.jsonl";
    job_.cluster.local = true;
    job_.cluster.servers = job_.cluster.workers = 1;
    job_.checkpoint.directory = folder_.path();
  }
  server::CheckpointInfo Write(const std::string& job_yaml) const {
    auto directory = server::CheckpointDirectory::Take(folder_.path());
    const auto partitions = plan::BuildPartitions(plan::BuildUnits(spec_), 1 << 20);
    auto writer = server::ShardWriter::Create(*directory->Begin(3), 0, 3, partitions).value();
    for (const plan::PartitionSpec& partition : partitions) {
      const std::vector<float> values(static_cast<size_t>(partition.count));
      EXPECT_TRUE(writer->Add(values, values, values).ok());
    }
    server::Manifest manifest;
    manifest.step = 3;
    manifest.spec = spec_;
    manifest.shards = {*writer->Finish()};
    return {.step = 3, .path = directory->Complete(manifest, job_yaml).value()};
  }

  const TemporaryFolder folder_;
  const plan::ModelSpec spec_ = *plan::NamedShape("tiny");
  plan::Job job_;
};

TEST_F(PreflightTest, AResumeSaysWhatIsOtherwise) {
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(job_));
  EXPECT_THAT(*CheckResumedJob(checkpoint, job_, false), ElementsAre());
  plan::Job other = job_;
  other.train.steps = 9999;
  other.train.learning_rate = 0.5;
  other.train.optimizer = plan::Optimizer::kLion;
  other.cluster.workers = 2;
  other.checkpoint.keep = 7;
  EXPECT_THAT(*CheckResumedJob(checkpoint, other, false),
              ElementsAre(HasSubstr("train.steps: "), HasSubstr("train.learning_rate: "),
                          HasSubstr("train.optimizer: adamw in the checkpoint's job, lion now"),
                          HasSubstr("cluster.local.workers: 1 in the checkpoint's job, 2 now"),
                          HasSubstr("checkpoint.keep: 3 in the checkpoint's job, 7 now")));
}

TEST_F(PreflightTest, AResumeWithOtherSamplesIsRefusedUnlessAccepted) {
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(job_));
  plan::Job seed = job_;
  seed.data.seed = 9;
  plan::Job data = job_;
  data.data.train = "/data/b.jsonl";
  plan::Job format = job_;
  format.data.chat_template = "chatml";
  plan::Job packing = job_;
  packing.data.microbatch_tokens = 8192;
  plan::Job minibatch = job_;
  minibatch.train.minibatch_samples = 7;
  plan::Job pretrain = job_;
  pretrain.train.objective = plan::Objective::kPretrain;
  plan::Job groups = job_;
  groups.plan.pack_groups = 3;
  for (auto [job, key] : {std::pair{seed, "data.seed (1 in the checkpoint's job, 9 now)"},
                          {data, "data.train (\"/data/a.jsonl\" in"},
                          {format, "data.template (\"auto\" in"},
                          {packing, "data.microbatch_tokens ("},
                          {pretrain, "train.objective (sft in"},
                          {minibatch, "train.minibatch_samples ("},
                          {groups, "plan.pack_groups (0 in"}}) {
    const absl::Status status = CheckResumedJob(checkpoint, job, false).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(std::string(Message(status)), HasSubstr(key));
    EXPECT_THAT(std::string(Message(status)), HasSubstr("--accept-changes"));
    EXPECT_EQ(CheckResumedJob(checkpoint, job, true)->size(), 1u);
  }
}

// Lion has no second moments, and AdamW would divide by those that begin at 0.
TEST_F(PreflightTest, AResumeWithMomentsThatAreNotThereIsRefusedUnlessAccepted) {
  plan::Job lion = job_;
  lion.train.optimizer = plan::Optimizer::kLion;
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(lion));
  EXPECT_THAT(std::string(Message(CheckResumedJob(checkpoint, job_, false).status())),
              HasSubstr("train.optimizer (lion in the checkpoint's job, adamw now)"));
  EXPECT_EQ(CheckResumedJob(checkpoint, job_, true)->size(), 1u);
}

TEST_F(PreflightTest, AResumeMayDropAnotherPartOfWhatAdaptersRead) {
  job_.lora = {.rank = 4, .alpha = 8, .dropout = 0.1};
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(job_));
  job_.lora.dropout = 0;
  EXPECT_THAT(*CheckResumedJob(checkpoint, job_, false),
              ElementsAre(HasSubstr("lora.dropout: 0.1 in the checkpoint's job, 0 now")));
}

TEST_F(PreflightTest, AResumeReadsTheModelBesideAdaptersWhereItWas) {
  job_.lora = {.rank = 4, .alpha = 8};
  plan::Job files = job_;
  files.service.frozen = plan::Frozen::kFiles;
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(files));
  EXPECT_THAT(*CheckResumedJob(checkpoint, files, false), ElementsAre());
  for (const bool accept : {false, true}) {
    EXPECT_REFUSED(CheckResumedJob(checkpoint, job_, accept).status(),
                   "goes on with the adapters that are there: service.frozen (files in the "
                   "checkpoint's job, servers now); take these values back");
  }
}

TEST_F(PreflightTest, AResumePacksAsItsCheckpoint) {
  plan::Job resolved = job_;
  resolved.plan.pack_groups = 3;
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(resolved));
  plan::Job left_open = job_;
  ASSERT_OK(SettleAsBefore(checkpoint, left_open));
  EXPECT_THAT(*CheckResumedJob(checkpoint, left_open, false), ElementsAre());
  EXPECT_EQ(left_open.plan.pack_groups, 3);
}

TEST_F(PreflightTest, AResumeTellsTheDayOfItsCheckpoint) {
  plan::Job resolved = job_;
  resolved.data.date = "2026-02-28";
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(resolved));
  plan::Job left_open = job_;
  ASSERT_OK(SettleAsBefore(checkpoint, left_open));
  EXPECT_THAT(*CheckResumedJob(checkpoint, left_open, false), ElementsAre());
  EXPECT_EQ(left_open.data.date, "2026-02-28");
  plan::Job other = job_;
  other.data.date = "2026-03-01";
  EXPECT_THAT(std::string(Message(CheckResumedJob(checkpoint, other, false).status())),
              HasSubstr("data.date (\"2026-02-28\" in the checkpoint's job"));
}

// A model without its adapters has no steps that recompute: memory that is short is said at once.
TEST_F(PreflightTest, AResumeComparesWithWhatItDidBeforeMemoryIsLookedAt) {
  job_.train.objective = plan::Objective::kDpo;
  job_.lora.rank = 4;
  plan::Job resolved = job_;
  resolved.preference.reference = plan::Reference::kAdapterOff;
  plan::Job left_open = job_;
  ASSERT_OK(SettleAsBefore(std::nullopt, left_open));
  EXPECT_EQ(left_open, job_);
  EXPECT_FALSE(plan::HindersSchedules(left_open).has_value());
  ASSERT_OK(SettleAsBefore(Write(plan::ToYaml(resolved)), left_open));
  EXPECT_EQ(left_open.preference.reference, plan::Reference::kAdapterOff);
  EXPECT_EQ(plan::HindersSchedules(left_open)->first, "preference.reference");
}

TEST_F(PreflightTest, StepsThatEpochsWereAreNoChange) {
  const server::CheckpointInfo checkpoint = Write(plan::ToYaml(job_));
  plan::Job in_epochs = job_;
  in_epochs.train.epochs = 0.5;
  EXPECT_THAT(*CheckResumedJob(checkpoint, in_epochs, false), ElementsAre());
  EXPECT_EQ(in_epochs.train.epochs, 0.5);
}

TEST_F(PreflightTest, AFlippedByteIsFoundBeforeAnythingRuns) {
  Write(plan::ToYaml(job_));
  const std::string damaged = server::CheckpointPath(folder_.path(), 3);
  std::fstream shard(damaged + "/server-0000.shard", std::ios::in | std::ios::out);
  shard.seekp(-100, std::ios::end);
  shard.put('\x5A');
  shard.close();
  for (const char* resume : {kResumeNewest, "3", kResumeAuto}) {
    const absl::Status status = ChooseCheckpoint(folder_.path(), resume).status();
    EXPECT_THAT(std::string(Message(status)), HasSubstr(damaged + "/server-0000.shard"));
  }
}

TEST_F(PreflightTest, WhoIsOvertakenByAnotherRunMayStartAgain) {
  EXPECT_TRUE(CheckNotOvertaken(folder_.path(), std::nullopt).ok());
  server::CheckpointInfo found;
  found.step = 3;
  Write(plan::ToYaml(job_));
  EXPECT_TRUE(CheckNotOvertaken(folder_.path(), found).ok());
  found.step = 2;
  EXPECT_TRUE(absl::IsAborted(CheckNotOvertaken(folder_.path(), found)));
  const absl::Status status = CheckNotOvertaken(folder_.path(), std::nullopt);
  EXPECT_EQ(ExitCodeFor(status), ExitCode::kFailure) << "which a scheduler restarts";
  EXPECT_THAT(std::string(Message(status)),
              HasSubstr(server::CheckpointPath(folder_.path(), 3) + " meanwhile: start again"));
}

TEST_F(PreflightTest, AJobOfAnotherReleaseIsNoHindrance) {
  EXPECT_THAT(*CheckResumedJob(Write("unknown: 1\n"), job_, false),
              ElementsAre(HasSubstr("cannot compare")));
}

TEST_F(PreflightTest, SomethingTrains) {
  job_.train.groups = {{.match = "*.layers.*", .freeze = true}};
  ASSERT_OK(CheckGroups(job_, spec_));
  job_.train.groups.push_back({.match = "*", .freeze = true});
  EXPECT_EQ(Message(CheckGroups(job_, spec_)),
            "every tensor of the model is frozen, so nothing trains: leave one out");
}

TEST_F(PreflightTest, NoAdaptersOfALayerStayAsTheyAre) {
  const plan::ModelSpec spec =
      plan::WithAdapters(*plan::NamedShape("tiny"), {"all-linear"}, /*rank=*/4, /*scale=*/2)
          .value();
  job_.train.groups = {{.match = "*lora_A*", .freeze = true}};
  ASSERT_OK(CheckGroups(job_, spec));
  job_.train.groups = {{.match = "*.layers.0.*", .freeze = true}};
  EXPECT_EQ(Message(CheckGroups(job_, spec)),
            "every tensor of block.0.adapter is frozen: leave one out, or have no adapters there");
}

TEST_F(PreflightTest, WarnsOfLongSamplesAndLargeMinibatches) {
  EXPECT_TRUE(DataWarnings(job_, spec_, {.samples = 1000, .longest = 8}).empty());
  plan::ModelSpec spec = spec_;
  spec.max_positions = 512;
  job_.train.minibatch_samples = 1000;
  EXPECT_THAT(DataWarnings(job_, spec, {.samples = 400, .longest = 1090}),
              ElementsAre(HasSubstr("has 1090 tokens, and the model was made for 512 positions"),
                          HasSubstr("about 2.5 times")));
}

// In files without blocks.
TEST_F(PreflightTest, WhatIsNotCompleteCountsAsRoom) {
  plan::ModelSpec spec = spec_;
  while (CheckRoom(job_, spec, false).ok()) {
    spec.vocabulary *= 2;
  }
  const std::string left = server::CheckpointPath(folder_.path(), 3) + ".run";
  std::filesystem::create_directories(left);
  for (const char* shard : {"/server-0000.shard", "/server-0001.shard", "/server-0002.shard"}) {
    std::ofstream(left + shard).close();
    std::filesystem::resize_file(left + shard,
                                 static_cast<uint64_t>(plan::ParameterCount(spec)) * 4);
  }
  ASSERT_OK(CheckRoom(job_, spec, false).status());
}

TEST_F(PreflightTest, RoomForCheckpointsIsCheckedBefore) {
  EXPECT_EQ(*CheckRoom(job_, spec_, false), "");
  plan::ModelSpec spec = spec_;
  spec.layers = 1 << 20;
  spec.hidden = 1 << 14;
  EXPECT_THAT(std::string(Message(CheckRoom(job_, spec, false).status())),
              HasSubstr(folder_.path() + ": a checkpoint needs "));
  job_.checkpoint.keep = 1000000;
  spec = *plan::NamedShape("6m");
  EXPECT_THAT(*CheckRoom(job_, spec, false), HasSubstr("1000001 checkpoints (checkpoint.keep"));
}

}  // namespace
}  // namespace shoal::cli
