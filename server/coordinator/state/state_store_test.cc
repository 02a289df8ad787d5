#include "server/coordinator/state/state_store.h"

#include <filesystem>
#include <fstream>

#include "core/base/random.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

class StateStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override {
    store_.reset();
    for (const char* suffix : {"", "-wal", "-shm"}) {
      std::filesystem::remove(path_ + suffix);
    }
  }
  bool durable() const { return GetParam(); }
  void Open() {
    store_.reset();
    if (durable()) {
      auto opened = OpenSqliteStateStore(path_);
      ASSERT_TRUE(opened.ok()) << opened.status();
      store_ = std::move(*opened);
    } else {
      store_ = MakeMemoryStateStore();
    }
  }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("state-" + SecureToken())).string();
  std::unique_ptr<StateStore> store_;
};

TEST_P(StateStoreTest, StartsEmpty) {
  const SavedState state = *store_->Load();
  EXPECT_EQ(state.incarnations, 0);
  EXPECT_TRUE(state.job_yaml.empty());
  EXPECT_FALSE(state.last_commit.has_value());
  EXPECT_TRUE(state.checkpoints.empty());
}

TEST_P(StateStoreTest, RemembersAndForgetsByJob) {
  const CommitRecord commit = {
      .step = 7, .attempt = 2, .learning_rate = 1e-3, .clip_coefficient = 0.25, .generation = 3};
  ASSERT_TRUE(store_->SaveIncarnations(12).ok());
  ASSERT_TRUE(store_->BeginJob("model: 'x'\n", "tokens.bin").ok());
  ASSERT_TRUE(store_->RecordCommit({.step = 6}).ok());
  ASSERT_TRUE(store_->RecordCommit(commit).ok());
  ASSERT_TRUE(store_->RecordCheckpoint({.step = 5, .path = "c/step-00000005"}).ok());
  if (durable()) {
    Open();
  }
  SavedState state = *store_->Load();
  EXPECT_EQ(state.incarnations, 12);
  EXPECT_EQ(state.job_yaml, "model: 'x'\n");
  EXPECT_EQ(state.token_file, "tokens.bin");
  EXPECT_EQ(state.outcome, "");
  EXPECT_EQ(state.last_commit, commit);
  EXPECT_EQ(state.checkpoints,
            (std::vector<CheckpointRecord>{{.step = 5, .path = "c/step-00000005"}}));
  ASSERT_TRUE(store_->EndJob("done").ok());
  EXPECT_EQ(store_->Load()->outcome, "done");
  ASSERT_TRUE(store_->BeginJob("second", "").ok());
  state = *store_->Load();
  EXPECT_EQ(state.incarnations, 12);
  EXPECT_EQ(state.outcome, "");
  EXPECT_FALSE(state.last_commit.has_value());
  EXPECT_TRUE(state.checkpoints.empty());
}

INSTANTIATE_TEST_SUITE_P(Stores, StateStoreTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Sqlite" : "Memory"; });

TEST(SqliteStateStoreTest, ErrorsNameTheFile) {
  const auto unreachable = OpenSqliteStateStore("no-such-folder/state");
  EXPECT_NE(Message(unreachable.status()).find("no-such-folder/state"), std::string_view::npos);

  const std::string path =
      (std::filesystem::temp_directory_path() / ("state-" + SecureToken())).string();
  std::ofstream(path) << "this is not a database, and long enough that nobody could take it for "
                         "one .......................";
  const auto garbage = OpenSqliteStateStore(path);
  EXPECT_NE(Message(garbage.status()).find(path), std::string_view::npos);
  std::filesystem::remove(path);
}

TEST(SqliteStateStoreTest, ASecondCoordinatorIsRefused) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("state-" + SecureToken())).string();
  const auto first = OpenSqliteStateStore(path);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->SaveIncarnations(1).ok());
  EXPECT_EQ(OpenSqliteStateStore(path).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(path + suffix);
  }
}

}  // namespace
}  // namespace shoal::server
