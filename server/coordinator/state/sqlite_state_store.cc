// One file in write-ahead mode. synchronous=NORMAL hands transactions to the system without a sync
// each, so a commit record, for which a step waits, costs tens of microseconds instead of
// milliseconds. If the machine fails (not the process), the tail of the log is lost. That is enough
// for what is written in every step: a restarted coordinator reads records while the servers with
// the weights still run, and those answer which version they published and recognise a repeated
// commit; if the machine failed with them, the checkpoint is the truth, not this file. What is rare
// and nobody else could tell is synced: terms, members, jobs and where they run.
#include <sqlite3.h>

#include <filesystem>
#include <functional>
#include <map>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/state/state_store.h"

namespace shoal::server {
namespace {

constexpr const char* kSchema = R"(
  PRAGMA journal_mode = WAL;
  PRAGMA synchronous = NORMAL;
  PRAGMA locking_mode = EXCLUSIVE;
  CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, request BLOB NOT NULL,
                                   outcome TEXT NOT NULL);
  CREATE TABLE IF NOT EXISTS commits (job TEXT PRIMARY KEY, step INTEGER NOT NULL,
                                      attempt INTEGER NOT NULL, learning_rate REAL NOT NULL,
                                      clip_coefficient REAL NOT NULL, generation INTEGER NOT NULL,
                                      event BLOB NOT NULL DEFAULT x'') WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS job_checkpoints (job TEXT NOT NULL, step INTEGER NOT NULL,
                                              path TEXT NOT NULL, PRIMARY KEY (job, step))
                                              WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS members (incarnation INTEGER PRIMARY KEY, record BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS runs (job TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS stops (job TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;
  CREATE TABLE IF NOT EXISTS events (job TEXT NOT NULL, number INTEGER NOT NULL,
                                     event BLOB NOT NULL, PRIMARY KEY (job, number)) WITHOUT ROWID;
  INSERT OR IGNORE INTO counters VALUES ('cluster', random());
  PRAGMA user_version = 4;
)";
constexpr int kVersion = 4;

// Jobs of version 2 had no request, so none of them can go on.
constexpr const char* kFromVersion2 = R"(
  BEGIN;
  ALTER TABLE jobs RENAME TO jobs_2;
  CREATE TABLE jobs (id TEXT PRIMARY KEY, request BLOB NOT NULL, outcome TEXT NOT NULL);
  INSERT INTO jobs SELECT id, x'', outcome FROM jobs_2;
  DROP TABLE jobs_2;
  PRAGMA user_version = 3;
  COMMIT;
)";

// Commits of version 3 had no event.
constexpr const char* kFromVersion3 = R"(
  BEGIN;
  CREATE TABLE IF NOT EXISTS commits (job TEXT PRIMARY KEY, step INTEGER NOT NULL,
                                      attempt INTEGER NOT NULL, learning_rate REAL NOT NULL,
                                      clip_coefficient REAL NOT NULL, generation INTEGER NOT NULL)
                                      WITHOUT ROWID;
  ALTER TABLE commits ADD COLUMN event BLOB NOT NULL DEFAULT x'';
  PRAGMA user_version = 4;
  COMMIT;
)";

constexpr const char* kForgetEndedJobs = R"(
  DELETE FROM commits WHERE job IN (SELECT id FROM jobs WHERE outcome != '');
  DELETE FROM job_checkpoints WHERE job IN (SELECT id FROM jobs WHERE outcome != '');
  DELETE FROM runs WHERE job IN (SELECT id FROM jobs WHERE outcome != '');
  DELETE FROM stops WHERE job IN (SELECT id FROM jobs WHERE outcome != '');
  DELETE FROM events WHERE job IN (SELECT id FROM jobs WHERE outcome != '');
  DELETE FROM jobs WHERE outcome != '';
)";

class SqliteStateStore final : public StateStore {
 public:
  SqliteStateStore(std::string path, sqlite3* database)
      : path_(std::move(path)), database_(database) {}
  ~SqliteStateStore() override {
    for (sqlite3_stmt* statement : {record_commit_, save_event_, drop_events_}) {
      sqlite3_finalize(statement);
    }
    sqlite3_close(database_);
  }

  absl::Status Prepare() {
    int64_t version = 0;
    SHOAL_RETURN_IF_ERROR(ForEachRow(
        "PRAGMA user_version", [&](sqlite3_stmt* row) { version = sqlite3_column_int64(row, 0); }));
    if (version > kVersion) {
      return FailedPrecondition(
          "{} was written by a newer shoal-coordinator (state of version {}, this one knows {}): "
          "use that program, or another --state",
          path_, version, kVersion);
    }
    if (version == 2) {
      SHOAL_RETURN_IF_ERROR(Execute(kFromVersion2));
    }
    if (version == 2 || version == 3) {
      SHOAL_RETURN_IF_ERROR(Execute(kFromVersion3));
    }
    SHOAL_RETURN_IF_ERROR(Execute(kSchema));
    SHOAL_RETURN_IF_ERROR(
        Compile("REPLACE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?)", record_commit_));
    SHOAL_RETURN_IF_ERROR(Compile("INSERT INTO events VALUES (?, ?, ?)", save_event_));
    return Compile("DELETE FROM events WHERE job = ? AND number <= ?", drop_events_);
  }

  absl::Status BeginTerm() override {
    return AsOneSynced([&] {
      return Run(
          "INSERT INTO counters VALUES ('term', 1)"
          " ON CONFLICT (name) DO UPDATE SET value = value + 1",
          [](sqlite3_stmt*) {});
    });
  }

  absl::StatusOr<SavedState> Load() override {
    SavedState state;
    SHOAL_RETURN_IF_ERROR(ForEachRow("SELECT name, value FROM counters", [&](sqlite3_stmt* row) {
      const std::string name = Text(row, 0);
      const int64_t value = sqlite3_column_int64(row, 1);
      if (name == "incarnations") {
        state.incarnations = value;
      } else if (name == "term") {
        state.term = value;
      } else if (name == "cluster") {
        state.cluster = static_cast<uint64_t>(value);
      }
    }));
    SHOAL_RETURN_IF_ERROR(ForEachMessage<proto::SavedMember>(
        "SELECT record FROM members ORDER BY incarnation",
        [&](proto::SavedMember member) { state.members.push_back(std::move(member)); }));
    SHOAL_RETURN_IF_ERROR(
        ForEachRow("SELECT id, request, outcome, COALESCE(reason, '') FROM jobs"
                   " LEFT JOIN stops ON stops.job = jobs.id ORDER BY jobs.rowid",
                   [&](sqlite3_stmt* row) {
                     state.jobs.push_back({.id = Text(row, 0),
                                           .request = Bytes(row, 1),
                                           .outcome = Text(row, 2),
                                           .stop = Text(row, 3)});
                   }));
    for (SavedJob& job : state.jobs) {
      SHOAL_RETURN_IF_ERROR(LoadRecords(job));
    }
    return state;
  }

  absl::Status SaveMember(const proto::SavedMember& member, int64_t issued) override {
    return AsOneSynced([&]() -> absl::Status {
      SHOAL_RETURN_IF_ERROR(
          Run("REPLACE INTO counters VALUES ('incarnations', ?)",
              [&](sqlite3_stmt* statement) { sqlite3_bind_int64(statement, 1, issued); }));
      return Run("REPLACE INTO members VALUES (?, ?)", [&](sqlite3_stmt* statement) {
        sqlite3_bind_int64(statement, 1, static_cast<int64_t>(member.incarnation()));
        Bind(statement, 2, member);
      });
    });
  }

  absl::Status RemoveMember(uint64_t incarnation) override {
    return Run("DELETE FROM members WHERE incarnation = ?", [&](sqlite3_stmt* statement) {
      sqlite3_bind_int64(statement, 1, static_cast<int64_t>(incarnation));
    });
  }

  absl::Status BeginJob(const std::string& id, const std::string& request) override {
    return AsOneSynced([&]() -> absl::Status {
      SHOAL_RETURN_IF_ERROR(Execute(kForgetEndedJobs));
      dropped_.clear();  // those of forgotten jobs
      return Run("INSERT INTO jobs VALUES (?, ?, '')", [&](sqlite3_stmt* statement) {
        Bind(statement, 1, id);
        sqlite3_bind_blob(statement, 2, request.data(), static_cast<int>(request.size()),
                          SQLITE_TRANSIENT);
      });
    });
  }

  absl::Status SaveRun(const std::string& id, const proto::SavedRun& run, bool begins) override {
    const auto save = [&]() -> absl::Status {
      SHOAL_RETURN_IF_ERROR(Run("REPLACE INTO runs SELECT id, ? FROM jobs WHERE id = ?",
                                [&](sqlite3_stmt* statement) {
                                  Bind(statement, 1, run);
                                  Bind(statement, 2, id);
                                }));
      return begins ? Run("DELETE FROM commits WHERE job = ?",
                          [&](sqlite3_stmt* statement) { Bind(statement, 1, id); })
                    : absl::OkStatus();
    };
    return AsOneSynced(save);
  }

  absl::Status RecordCommit(const std::string& id, const CommitRecord& commit) override {
    Bind(record_commit_, 1, id);
    sqlite3_bind_int64(record_commit_, 2, commit.step);
    sqlite3_bind_int64(record_commit_, 3, commit.attempt);
    sqlite3_bind_double(record_commit_, 4, commit.learning_rate);
    sqlite3_bind_double(record_commit_, 5, commit.clip_coefficient);
    sqlite3_bind_int64(record_commit_, 6, commit.generation);
    Bind(record_commit_, 7, commit.event);
    return RunCompiled(record_commit_, "record of a commit");
  }

  absl::Status SaveEvent(const std::string& id, const proto::JobEvent& event) override {
    Bind(save_event_, 1, id);
    sqlite3_bind_int64(save_event_, 2, event.number());
    Bind(save_event_, 3, event);
    SHOAL_RETURN_IF_ERROR(RunCompiled(save_event_, "record of an event"));
    constexpr int64_t kBetweenDrops = 64;  // each takes as long as to save one
    int64_t& dropped = dropped_[id];
    if (event.number() - dropped < kBetweenDrops) {
      return absl::OkStatus();
    }
    dropped = event.number();
    Bind(drop_events_, 1, id);
    sqlite3_bind_int64(drop_events_, 2, event.number() - kMaxEvents);
    return RunCompiled(drop_events_, "record of an event");
  }

  absl::Status StopJob(const std::string& id, const std::string& reason) override {
    return AsOneSynced([&] {
      return Run("REPLACE INTO stops VALUES (?, ?)", [&](sqlite3_stmt* statement) {
        Bind(statement, 1, id);
        Bind(statement, 2, reason);
      });
    });
  }

  absl::Status RecordCheckpoint(const std::string& id,
                                const CheckpointRecord& checkpoint) override {
    return Run("REPLACE INTO job_checkpoints VALUES (?, ?, ?)", [&](sqlite3_stmt* statement) {
      Bind(statement, 1, id);
      sqlite3_bind_int64(statement, 2, checkpoint.step);
      Bind(statement, 3, checkpoint.path);
    });
  }

  absl::Status EndJob(const std::string& id, const std::string& outcome) override {
    return AsOneSynced([&] {
      return Run("UPDATE jobs SET outcome = ? WHERE id = ?", [&](sqlite3_stmt* statement) {
        Bind(statement, 1, outcome);
        Bind(statement, 2, id);
      });
    });
  }

 private:
  absl::Status LoadRecords(SavedJob& job) {
    const auto of_job = [&](sqlite3_stmt* statement) { Bind(statement, 1, job.id); };
    bool readable = true;
    SHOAL_RETURN_IF_ERROR(ForEachRow(
        "SELECT step, attempt, learning_rate, clip_coefficient, generation, event FROM commits"
        " WHERE job = ?",
        [&](sqlite3_stmt* row) {
          job.last_commit = {.step = sqlite3_column_int64(row, 0),
                             .attempt = sqlite3_column_int64(row, 1),
                             .learning_rate = sqlite3_column_double(row, 2),
                             .clip_coefficient = sqlite3_column_double(row, 3),
                             .generation = sqlite3_column_int64(row, 4)};
          readable = job.last_commit->event.ParseFromString(Bytes(row, 5)) && readable;
        },
        of_job));
    if (!readable) {
      return DataLoss("{}: the last commit of {} cannot be read", path_, job.id);
    }
    SHOAL_RETURN_IF_ERROR(ForEachMessage<proto::SavedRun>(
        "SELECT record FROM runs WHERE job = ?",
        [&](proto::SavedRun run) { job.run = std::move(run); }, of_job));
    SHOAL_RETURN_IF_ERROR(ForEachMessage<proto::JobEvent>(
        "SELECT event FROM events WHERE job = ? ORDER BY number",
        [&](proto::JobEvent event) { job.events.push_back(std::move(event)); }, of_job));
    return ForEachRow(
        "SELECT step, path FROM job_checkpoints WHERE job = ? ORDER BY step",
        [&](sqlite3_stmt* row) {
          job.checkpoints.push_back({.step = sqlite3_column_int64(row, 0), .path = Text(row, 1)});
        },
        of_job);
  }

  absl::Status Error(const char* what) const {
    if (const int code = sqlite3_errcode(database_); code == SQLITE_BUSY || code == SQLITE_LOCKED) {
      return FailedPrecondition(
          "{}: another coordinator has this state file open; give each its own --state", path_);
    }
    return Internal("{}: {}: {}", path_, what, sqlite3_errmsg(database_));
  }

  absl::Status Execute(const char* sql) {
    return sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK
               ? absl::OkStatus()
               : Error("state file");
  }

  // One transaction.
  absl::Status AsOne(const std::function<absl::Status()>& changes) {
    SHOAL_RETURN_IF_ERROR(Execute("BEGIN"));
    const absl::Status status = changes();
    SHOAL_RETURN_IF_ERROR(Execute(status.ok() ? "COMMIT" : "ROLLBACK"));
    return status;
  }

  // One that outlasts the machine, with all before it.
  absl::Status AsOneSynced(const std::function<absl::Status()>& changes) {
    SHOAL_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
    const absl::Status status = AsOne(changes);
    SHOAL_RETURN_IF_ERROR(Execute("PRAGMA synchronous = NORMAL"));
    return status;
  }

  absl::Status Compile(const char* sql, sqlite3_stmt*& statement) {
    return sqlite3_prepare_v2(database_, sql, -1, &statement, nullptr) == SQLITE_OK
               ? absl::OkStatus()
               : Error(sql);
  }

  template <typename BindAll>
  absl::Status Run(const char* sql, BindAll bind) {
    sqlite3_stmt* statement = nullptr;
    SHOAL_RETURN_IF_ERROR(Compile(sql, statement));
    bind(statement);
    const int code = sqlite3_step(statement);
    const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Error(sql);
    sqlite3_finalize(statement);
    return status;
  }

  template <typename OnRow>
  absl::Status ForEachRow(
      const char* sql, OnRow on_row,
      const std::function<void(sqlite3_stmt*)>& bind = [](sqlite3_stmt*) {}) {
    sqlite3_stmt* statement = nullptr;
    SHOAL_RETURN_IF_ERROR(Compile(sql, statement));
    bind(statement);
    int code = sqlite3_step(statement);
    for (; code == SQLITE_ROW; code = sqlite3_step(statement)) {
      on_row(statement);
    }
    const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Error(sql);
    sqlite3_finalize(statement);
    return status;
  }

  // Rows whose one column is a message.
  template <typename Message, typename OnMessage>
  absl::Status ForEachMessage(
      const char* sql, OnMessage on_message,
      const std::function<void(sqlite3_stmt*)>& bind = [](sqlite3_stmt*) {}) {
    bool readable = true;
    SHOAL_RETURN_IF_ERROR(ForEachRow(
        sql,
        [&](sqlite3_stmt* row) {
          Message message;
          readable = message.ParseFromString(Bytes(row, 0)) && readable;
          on_message(std::move(message));
        },
        bind));
    return readable ? absl::OkStatus() : DataLoss("{}: a record cannot be read ({})", path_, sql);
  }

  // One that is kept, with its values bound.
  absl::Status RunCompiled(sqlite3_stmt* statement, const char* what) {
    const int code = sqlite3_step(statement);
    sqlite3_reset(statement);
    return code == SQLITE_DONE ? absl::OkStatus() : Error(what);
  }

  static void Bind(sqlite3_stmt* statement, int index, const std::string& text) {
    sqlite3_bind_text(statement, index, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  static void Bind(sqlite3_stmt* statement, int index,
                   const google::protobuf::MessageLite& message) {
    const std::string bytes = message.SerializeAsString();
    sqlite3_bind_blob(statement, index, bytes.data(), static_cast<int>(bytes.size()),
                      SQLITE_TRANSIENT);
  }
  static std::string Text(sqlite3_stmt* row, int column) {
    const unsigned char* text = sqlite3_column_text(row, column);
    return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text));
  }

  static std::string Bytes(sqlite3_stmt* row, int column) {
    const auto* bytes = static_cast<const char*>(sqlite3_column_blob(row, column));
    return bytes == nullptr
               ? ""
               : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(row, column)));
  }

  const std::string path_;
  sqlite3* const database_;
  // Compiled once: they run in every step.
  sqlite3_stmt* record_commit_ = nullptr;
  sqlite3_stmt* save_event_ = nullptr;
  sqlite3_stmt* drop_events_ = nullptr;
  std::map<std::string, int64_t> dropped_;  // with which event of a job older ones went
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& path) {
  sqlite3* database = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  auto store = std::make_unique<SqliteStateStore>(path, database);
  if (code != SQLITE_OK) {
    return Unavailable("cannot open the state file {}: {}; choose another with --state", path,
                       sqlite3_errstr(code));
  }
  // What commands to servers show is in it. Who may write the file and does not own it goes on.
  std::error_code not_owner;
  std::filesystem::permissions(
      path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, not_owner);
  if (not_owner) {
    LogWarning("{} stays as readable as it is: {}", path, not_owner.message());
  }
  SHOAL_RETURN_IF_ERROR(store->Prepare());
  return store;
}

}  // namespace shoal::server
