#include "cli/run/earlier_run.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class EarlierRunTest : public ::testing::Test {
 protected:
  void Add(int64_t step, const std::string& manifest = "{}") const {
    const std::string path = server::CheckpointPath(folder(), step);
    fs::create_directories(path);
    std::ofstream(path + "/manifest.json") << manifest;
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    const auto checkpoints = server::ListCheckpoints(folder());
    for (const server::CheckpointInfo& checkpoint : checkpoints.value()) {
      steps.push_back(checkpoint.step);
    }
    return steps;
  }
  bool Exists(const std::string& name) const { return fs::exists(folder() + "/" + name); }
  const std::string& folder() const { return folder_.path(); }

  const TemporaryFolder folder_;
};

TEST_F(EarlierRunTest, WhatItsSamplesWereMadeWithComesBack) {
  const std::string file = folder() + "/data/rendering.json";
  fs::create_directories(folder() + "/data");
  const auto rendering = [&] {
    std::string text;
    std::ifstream(file) >> text;
    return text;
  };
  Add(3);
  {
    const auto aside = EarlierRun::SetAside(folder(), -1);
    ASSERT_OK(aside.status());
    std::ofstream(file) << "other";
  }
  EXPECT_FALSE(fs::exists(file)) << "it had none";
  std::ofstream(file) << "its";
  {
    const auto aside = EarlierRun::SetAside(folder(), 2);
    ASSERT_OK(aside.status());
    EXPECT_FALSE(fs::exists(file));
    std::ofstream(file) << "other";
  }
  EXPECT_EQ(rendering(), "its");
  auto aside = EarlierRun::SetAside(folder(), -1);
  ASSERT_OK(aside.status());
  std::ofstream(file) << "other";
  ASSERT_OK(aside->Remove());
  EXPECT_EQ(rendering(), "other");
  // As if SetAside had been killed early.
  fs::create_directories(folder() + "/earlier-run");
  ASSERT_OK(EarlierRun::Recover(folder()));
  EXPECT_EQ(rendering(), "other") << "it was not aside yet";
}

TEST_F(EarlierRunTest, ComesBackUnlessItIsRemoved) {
  Add(3);
  Add(6);
  fs::create_directories(folder() + "/huggingface");
  fs::create_directories(folder() + "/step-by-step");  // not a checkpoint
  {
    const auto aside = EarlierRun::SetAside(folder(), -1);
    ASSERT_OK(aside.status());
    EXPECT_THAT(Steps(), ElementsAre());
    EXPECT_FALSE(Exists("huggingface"));
    EXPECT_TRUE(Exists("step-by-step"));
    fs::create_directories(server::CheckpointPath(folder(), 3));  // begun by the other run
  }
  EXPECT_THAT(Steps(), ElementsAre(3, 6));
  EXPECT_TRUE(Exists("huggingface"));
  EXPECT_FALSE(Exists("earlier-run"));
  {
    auto aside = EarlierRun::SetAside(folder(), -1);
    ASSERT_OK(aside.status());
    ASSERT_OK(aside->Remove());
  }
  EXPECT_THAT(Steps(), ElementsAre());
  EXPECT_FALSE(Exists("huggingface"));
  EXPECT_FALSE(Exists("earlier-run"));
}

TEST_F(EarlierRunTest, StepsUpToTheOneToGoOnFromStay) {
  Add(3);
  Add(6);
  Add(9);
  const auto aside = EarlierRun::SetAside(folder(), 6);
  ASSERT_OK(aside.status());
  EXPECT_THAT(Steps(), ElementsAre(3, 6));
}

// A process that is killed runs no destructor.
void SetAsideAndDie(const std::string& folder, int64_t step) {
  new EarlierRun(*EarlierRun::SetAside(folder, step));
}

TEST_F(EarlierRunTest, IsRecoveredAfterAKillBeforeTheFirstCheckpoint) {
  Add(3);
  Add(6);
  SetAsideAndDie(folder(), 3);
  ASSERT_OK(EarlierRun::Recover(folder()));
  EXPECT_THAT(Steps(), ElementsAre(3, 6));
}

TEST_F(EarlierRunTest, IsRemovedAfterAKillBehindTheFirstCheckpoint) {
  Add(3, "old");
  Add(6, "old");
  SetAsideAndDie(folder(), -1);
  Add(3, "new");
  ASSERT_OK(EarlierRun::Recover(folder()));
  EXPECT_THAT(Steps(), ElementsAre(3));
  EXPECT_FALSE(Exists("earlier-run"));
  EXPECT_FALSE(Exists("earlier-run.removed"));
}

TEST_F(EarlierRunTest, SettingAsideOrBringingBackCutOffLosesNothing) {
  Add(3);
  SetAsideAndDie(folder(), -1);
  fs::remove(folder() + "/earlier-run/after");
  Add(6);  // not aside yet, or back already
  ASSERT_OK(EarlierRun::Recover(folder()));
  EXPECT_THAT(Steps(), ElementsAre(3, 6));
  EXPECT_FALSE(Exists("earlier-run"));

  fs::create_directories(folder() + "/earlier-run");
  ASSERT_OK(EarlierRun::Recover(folder()));
  EXPECT_THAT(Steps(), ElementsAre(3, 6));
  EXPECT_FALSE(Exists("earlier-run"));
}

TEST_F(EarlierRunTest, ARemovalCutOffIsFinished) {
  fs::create_directories(folder() + "/earlier-run.removed/step-00000003");
  ASSERT_OK(EarlierRun::Recover(folder()));
  EXPECT_FALSE(Exists("earlier-run.removed"));
}

}  // namespace
}  // namespace shoal::cli
