#include "server/coordinator/state/state_store.h"

#include <sqlite3.h>

#include <fstream>
#include <set>

#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/etcd_state_store.h"
#include "server/coordinator/state/testing/etcd_process.h"

namespace shoal::server {
namespace {

enum class Kind { kMemory, kSqlite, kEtcd };

std::string NameOf(Kind kind) {
  if (kind == Kind::kMemory) {
    return "Memory";
  }
  return kind == Kind::kSqlite ? "Sqlite" : "Etcd";
}

class StateStoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kEtcd && !testing::EtcdProcess::Exists()) {
      GTEST_SKIP() << "no etcd here: scripts/install-dependencies.sh --tests";
    }
    if (GetParam() == Kind::kEtcd) {
      const absl::Status started = etcd_.Start();
      ASSERT_TRUE(started.ok()) << started;
    }
    Open();
  }
  bool durable() const { return GetParam() != Kind::kMemory; }
  void Open() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<StateStore>> opened = MakeMemoryStateStore();
    if (GetParam() == Kind::kSqlite) {
      opened = OpenSqliteStateStore(path_);
    } else if (GetParam() == Kind::kEtcd) {
      opened = EtcdCandidate({.at = {etcd_.endpoint(), "test"}, .address = "a:1"}).Try();
    }
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = std::move(*opened);
    ASSERT_NE(store_, nullptr);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "state";
  testing::EtcdProcess etcd_{folder_ / "etcd"};
  std::unique_ptr<StateStore> store_;
};

TEST_P(StateStoreTest, StartsEmpty) {
  const SavedState state = *store_->Load();
  EXPECT_EQ(state.incarnations, 0);
  EXPECT_TRUE(state.jobs.empty());
}

proto::SavedMember Member(uint64_t incarnation) {
  proto::SavedMember member;
  member.set_incarnation(incarnation);
  member.set_index(2);
  member.mutable_registered()->set_address("host:1");
  return member;
}

proto::JobEvent Event(int64_t number) {
  proto::JobEvent event;
  event.set_number(number);
  event.mutable_step()->set_step(number);
  return event;
}

TEST_P(StateStoreTest, RemembersAndForgetsByJob) {
  CommitRecord commit = {
      .step = 7, .attempt = 2, .learning_rate = 1e-3, .clip_coefficient = 0.25, .generation = 3};
  commit.event.set_loss(1.5);
  ASSERT_TRUE(store_->BeginJob("job-1", std::string("model\0x", 7)).ok());
  ASSERT_TRUE(store_->RecordCommit("job-1", {.step = 6}).ok());
  ASSERT_TRUE(store_->RecordCommit("job-1", commit).ok());
  ASSERT_TRUE(store_->RecordCheckpoint("job-1", {.step = 5, .path = "c/step-00000005"}).ok());
  ASSERT_TRUE(store_->SaveEvent("job-1", Event(1)).ok());
  ASSERT_TRUE(store_->SaveEvent("job-1", Event(4)).ok());
  ASSERT_TRUE(store_->StopJob("job-1", "asked to").ok());
  if (durable()) {
    Open();
  }
  SavedState state = *store_->Load();
  ASSERT_EQ(state.jobs.size(), 1U);
  EXPECT_EQ(state.jobs[0].id, "job-1");
  EXPECT_EQ(state.jobs[0].request, std::string("model\0x", 7));
  EXPECT_EQ(state.jobs[0].outcome, "");
  EXPECT_EQ(state.jobs[0].stop, "asked to");
  EXPECT_FALSE(state.jobs[0].run.has_value());
  ASSERT_TRUE(state.jobs[0].last_commit.has_value());
  EXPECT_EQ(state.jobs[0].last_commit->step, 7);
  EXPECT_EQ(state.jobs[0].last_commit->attempt, 2);
  EXPECT_EQ(state.jobs[0].last_commit->learning_rate, 1e-3);
  EXPECT_EQ(state.jobs[0].last_commit->clip_coefficient, 0.25);
  EXPECT_EQ(state.jobs[0].last_commit->generation, 3);
  EXPECT_EQ(state.jobs[0].last_commit->event.loss(), 1.5);
  EXPECT_EQ(state.jobs[0].checkpoints,
            (std::vector<CheckpointRecord>{{.step = 5, .path = "c/step-00000005"}}));
  ASSERT_EQ(state.jobs[0].events.size(), 2U);
  EXPECT_EQ(state.jobs[0].events[1].number(), 4);
  ASSERT_TRUE(store_->EndJob("job-1", "done").ok());
  EXPECT_EQ(store_->Load()->jobs[0].outcome, "done");
  ASSERT_TRUE(store_->BeginJob("job-2", "second").ok());
  state = *store_->Load();
  ASSERT_EQ(state.jobs.size(), 1U);
  EXPECT_EQ(state.jobs[0].id, "job-2");
  EXPECT_EQ(state.jobs[0].outcome, "");
  EXPECT_FALSE(state.jobs[0].last_commit.has_value());
  EXPECT_TRUE(state.jobs[0].checkpoints.empty());
  EXPECT_TRUE(state.jobs[0].events.empty());
}

TEST_P(StateStoreTest, RemembersMembers) {
  const uint64_t large = 0xf000'0000'0000'0001;
  ASSERT_TRUE(store_->SaveMember(Member(7), 1).ok());
  ASSERT_TRUE(store_->SaveMember(Member(large), 2).ok());
  ASSERT_TRUE(store_->SaveMember(Member(9), 12).ok());
  ASSERT_TRUE(store_->RemoveMember(9).ok());
  ASSERT_TRUE(store_->RemoveMember(10).ok()) << "who is not there";
  if (durable()) {
    Open();
  }
  const SavedState state = *store_->Load();
  EXPECT_EQ(state.incarnations, 12);
  ASSERT_EQ(state.members.size(), 2U);
  std::set<uint64_t> incarnations;
  for (const proto::SavedMember& member : state.members) {
    incarnations.insert(member.incarnation());
    EXPECT_EQ(member.index(), 2);
    EXPECT_EQ(member.registered().address(), "host:1");
  }
  EXPECT_EQ(incarnations, (std::set<uint64_t>{7, large}));
}

// A commit is its run's: what another one begins with is no commit of it.
TEST_P(StateStoreTest, ARunBeginsWithoutACommit) {
  ASSERT_TRUE(store_->BeginJob("job-1", "first").ok());
  ASSERT_TRUE(store_->RecordCommit("job-1", {.step = 3}).ok());
  proto::SavedRun run;
  run.set_run(4);
  ASSERT_TRUE(store_->SaveRun("job-1", run, /*begins=*/false).ok());
  EXPECT_EQ(store_->Load()->jobs[0].last_commit->step, 3);
  *run.add_servers() = Member(7);
  ASSERT_TRUE(store_->SaveRun("job-1", run, /*begins=*/true).ok());
  if (durable()) {
    Open();
  }
  const SavedState state = *store_->Load();
  EXPECT_FALSE(state.jobs[0].last_commit.has_value());
  EXPECT_EQ(state.jobs[0].run->run(), 4);
  EXPECT_EQ(state.jobs[0].run->servers(0).incarnation(), 7U);
  EXPECT_TRUE(store_->SaveRun("job-2", run, /*begins=*/true).ok()) << "it is forgotten already";
  EXPECT_EQ(store_->Load()->jobs.size(), 1U);
}

TEST_P(StateStoreTest, KeepsTheNewestEvents) {
  ASSERT_TRUE(store_->BeginJob("job-1", "first").ok());
  const int64_t count = StateStore::kMaxEvents + 200;
  for (int64_t number = 1; number <= count; ++number) {
    ASSERT_TRUE(store_->SaveEvent("job-1", Event(number)).ok());
  }
  const SavedState state = *store_->Load();
  const std::vector<proto::JobEvent>& events = state.jobs[0].events;
  EXPECT_GE(std::ssize(events), StateStore::kMaxEvents);
  EXPECT_LT(std::ssize(events), StateStore::kMaxEvents + 100);
  EXPECT_EQ(events.back().number(), count);
}

TEST_P(StateStoreTest, KeepsTheNewestEventsWhereNumbersSkip) {
  ASSERT_TRUE(store_->BeginJob("job-1", "first").ok());
  const int64_t last = 2 * StateStore::kMaxEvents + 1;
  for (int64_t number = 1; number <= last; number += 2) {
    ASSERT_TRUE(store_->SaveEvent("job-1", Event(number)).ok());
  }
  const SavedState state = *store_->Load();
  const std::vector<proto::JobEvent>& events = state.jobs[0].events;
  EXPECT_GT(events.front().number(), last - StateStore::kMaxEvents - 100);
  EXPECT_LT(events.front().number(), last - StateStore::kMaxEvents + 3);
  EXPECT_EQ(events.back().number(), last);
}

TEST_P(StateStoreTest, EachLifeHasAHigherTerm) {
  ASSERT_TRUE(store_->BeginTerm().ok());
  const SavedState first = *store_->Load();
  EXPECT_EQ(first.term, 1);
  EXPECT_NE(first.cluster, 0U);
  if (durable()) {
    Open();
  }
  ASSERT_TRUE(store_->BeginTerm().ok());
  EXPECT_EQ(store_->Load()->term, 2);
  EXPECT_EQ(store_->Load()->cluster, first.cluster);
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

INSTANTIATE_TEST_SUITE_P(Stores, StateStoreTest,
                         ::testing::Values(Kind::kMemory, Kind::kSqlite, Kind::kEtcd),
                         [](const auto& info) { return NameOf(info.param); });

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
  ASSERT_TRUE((*first)->BeginTerm().ok());
  EXPECT_EQ(OpenSqliteStateStore(path).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SqliteStateStoreTest, ItsFilesAreTheOwnersAlone) {
  const TemporaryFolder folder;
  const auto store = OpenSqliteStateStore(folder / "state");
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->BeginTerm().ok());
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(file.status().permissions() & ~std::filesystem::perms::owner_all,
              std::filesystem::perms::none)
        << file;
    ++files;
  }
  EXPECT_EQ(files, 2) << "the file and its log";
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

TEST(SqliteStateStoreTest, ReadsVersion3) {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  Execute(path, R"(
    CREATE TABLE jobs (id TEXT PRIMARY KEY, request BLOB NOT NULL, outcome TEXT NOT NULL);
    INSERT INTO jobs VALUES ('job-1', 'request', '');
    CREATE TABLE commits (job TEXT PRIMARY KEY, step INTEGER NOT NULL, attempt INTEGER NOT NULL,
                          learning_rate REAL NOT NULL, clip_coefficient REAL NOT NULL,
                          generation INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO commits VALUES ('job-1', 5, 1, 0.5, 1, 1);
    PRAGMA user_version = 3;
  )");
  for (int life = 1; life <= 2; ++life) {
    const auto store = OpenSqliteStateStore(path);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->BeginTerm().ok());
    const SavedState state = *(*store)->Load();
    EXPECT_EQ(state.term, life);
    ASSERT_EQ(state.jobs.size(), 1U);
    EXPECT_EQ(state.jobs[0].request, "request");
    EXPECT_EQ(state.jobs[0].last_commit->step, 5);
    EXPECT_FALSE(state.jobs[0].run.has_value());
  }
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
