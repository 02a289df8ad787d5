#include "server/coordinator/state/state_store.h"

#include <sqlite3.h>

#include <fstream>

#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

class StateStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Open(); }
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

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "state";
  std::unique_ptr<StateStore> store_;
};

TEST_P(StateStoreTest, StartsEmpty) {
  const SavedState state = *store_->Load();
  EXPECT_EQ(state.incarnations, 0);
  EXPECT_TRUE(state.jobs.empty());
}

TEST_P(StateStoreTest, RemembersAndForgetsByJob) {
  const CommitRecord commit = {
      .step = 7, .attempt = 2, .learning_rate = 1e-3, .clip_coefficient = 0.25, .generation = 3};
  ASSERT_TRUE(store_->SaveIncarnations(12).ok());
  ASSERT_TRUE(store_->BeginJob("job-1", std::string("model\0x", 7)).ok());
  ASSERT_TRUE(store_->RecordCommit("job-1", {.step = 6}).ok());
  ASSERT_TRUE(store_->RecordCommit("job-1", commit).ok());
  ASSERT_TRUE(store_->RecordCheckpoint("job-1", {.step = 5, .path = "c/step-00000005"}).ok());
  if (durable()) {
    Open();
  }
  SavedState state = *store_->Load();
  EXPECT_EQ(state.incarnations, 12);
  ASSERT_EQ(state.jobs.size(), 1U);
  EXPECT_EQ(state.jobs[0].id, "job-1");
  EXPECT_EQ(state.jobs[0].request, std::string("model\0x", 7));
  EXPECT_EQ(state.jobs[0].outcome, "");
  EXPECT_EQ(state.jobs[0].last_commit, commit);
  EXPECT_EQ(state.jobs[0].checkpoints,
            (std::vector<CheckpointRecord>{{.step = 5, .path = "c/step-00000005"}}));
  ASSERT_TRUE(store_->EndJob("job-1", "done").ok());
  EXPECT_EQ(store_->Load()->jobs[0].outcome, "done");
  ASSERT_TRUE(store_->BeginJob("job-2", "second").ok());
  state = *store_->Load();
  EXPECT_EQ(state.incarnations, 12);
  ASSERT_EQ(state.jobs.size(), 1U);
  EXPECT_EQ(state.jobs[0].id, "job-2");
  EXPECT_EQ(state.jobs[0].outcome, "");
  EXPECT_FALSE(state.jobs[0].last_commit.has_value());
  EXPECT_TRUE(state.jobs[0].checkpoints.empty());
}

TEST_P(StateStoreTest, EachLifeHasAHigherTerm) {
  EXPECT_EQ(*store_->BeginTerm(), 1);
  if (durable()) {
    Open();
  }
  EXPECT_EQ(*store_->BeginTerm(), 2);
  EXPECT_EQ(*store_->BeginTerm(), 3);
}

TEST_P(StateStoreTest, KeepsTheRecordsOfJobsApart) {
  ASSERT_TRUE(store_->BeginJob("job-b", "first").ok());
  ASSERT_TRUE(store_->BeginJob("job-a", "second").ok());
  EXPECT_FALSE(store_->BeginJob("job-a", "third").ok()) << "no id is given twice";
  ASSERT_TRUE(store_->RecordCommit("job-a", {.step = 3}).ok());
  ASSERT_TRUE(store_->RecordCommit("job-b", {.step = 8}).ok());
  ASSERT_TRUE(store_->RecordCheckpoint("job-b", {.step = 8, .path = "b"}).ok());
  ASSERT_TRUE(store_->EndJob("job-a", "done").ok());
  if (durable()) {
    Open();
  }
  const SavedState state = *store_->Load();
  ASSERT_EQ(state.jobs.size(), 2U);
  EXPECT_EQ(state.jobs[0].id, "job-b");
  EXPECT_EQ(state.jobs[0].last_commit->step, 8);
  EXPECT_EQ(state.jobs[0].checkpoints.size(), 1U);
  EXPECT_EQ(state.jobs[0].outcome, "");
  EXPECT_EQ(state.jobs[1].last_commit->step, 3);
  EXPECT_TRUE(state.jobs[1].checkpoints.empty());
  EXPECT_EQ(state.jobs[1].outcome, "done");
}

INSTANTIATE_TEST_SUITE_P(Stores, StateStoreTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Sqlite" : "Memory"; });

TEST(SqliteStateStoreTest, ErrorsNameTheFile) {
  const auto unreachable = OpenSqliteStateStore("no-such-folder/state");
  EXPECT_NE(Message(unreachable.status()).find("no-such-folder/state"), std::string_view::npos);

  const TemporaryFolder folder;
  const std::string path = folder / "state";
  std::ofstream(path) << "this is not a database, and long enough that nobody could take it for "
                         "one .......................";
  const auto garbage = OpenSqliteStateStore(path);
  EXPECT_NE(Message(garbage.status()).find(path), std::string_view::npos);
}

TEST(SqliteStateStoreTest, ASecondCoordinatorIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  const auto first = OpenSqliteStateStore(path);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->SaveIncarnations(1).ok());
  EXPECT_EQ(OpenSqliteStateStore(path).status().code(), absl::StatusCode::kFailedPrecondition);
}

void Execute(const std::string& path, const char* sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
}

TEST(SqliteStateStoreTest, ReadsWhatAnOlderProgramWrote) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  Execute(path, R"(
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO counters VALUES ('incarnations', 9);
    CREATE TABLE jobs (id TEXT PRIMARY KEY, yaml TEXT NOT NULL, token_file TEXT NOT NULL,
                       outcome TEXT NOT NULL);
    INSERT INTO jobs VALUES ('job-1', 'model: x', 'tokens', '');
    PRAGMA user_version = 2;
  )");
  const auto store = OpenSqliteStateStore(path);
  ASSERT_TRUE(store.ok()) << store.status();
  const SavedState state = *(*store)->Load();
  EXPECT_EQ(state.incarnations, 9);
  ASSERT_EQ(state.jobs.size(), 1U);
  EXPECT_EQ(state.jobs[0].id, "job-1");
  EXPECT_EQ(state.jobs[0].request, "");
}

TEST(SqliteStateStoreTest, RefusesWhatANewerProgramWrote) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  Execute(path, "PRAGMA user_version = 99;");
  const absl::Status refused = OpenSqliteStateStore(path).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_NE(Message(refused).find("newer shoal-coordinator"), std::string_view::npos) << refused;
}

}  // namespace
}  // namespace shoal::server
