// Decides how a coordinator goes on with a run of an earlier life, from what that life recorded and
// what servers answer to TakeOver. What servers say wins where the record's tail is lost. Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/server.pb.h"
#include "server/coordinator/state/state_store.h"

namespace shoal::server {

// The first number of the runs of a life of the coordinator: those of two lives differ, also where
// the later one does not know what the earlier one has begun.
inline int64_t FirstRunOf(int64_t term) {
  constexpr int64_t kRunsOfALife = 1 << 20;
  return (term - 1) * kRunsOfALife;
}

// What servers are told of it.
proto::CommitRequest CommitRequestOf(const CommitRecord& record);

struct RecordedRun {
  int64_t first_version = 0;  // that servers loaded
  int64_t generation = 0;
  std::optional<CommitRecord> commit;  // the last of this run
};

struct ServerAnswer {
  std::string server;  // its name, for messages
  bool holds = false;  // the job
  bool lost = false;   // others have what it had
  proto::TakeOverReply at;
};

struct TakeoverDecision {
  enum class What {
    kTrain,      // in the middle: begin the next attempt
    kCommit,     // some have not published `commit`: send it to all, then kTrain at its step
    kConfigure,  // not all have loaded the job, and nothing is committed: as a run that begins
    kRestart,    // weights of the last commit are lost: a new run, from the newest checkpoint
  };
  What what = What::kTrain;
  int64_t version = 0;  // published by all, or once `commit` is
  int64_t attempt = 0;  // the highest that any server has seen of the step after it
  CommitRecord commit;  // the last; its step is 0 where there is none
  std::string message;  // of kRestart: why
};

// `all`: servers of the run.
TakeoverDecision DecideTakeover(const RecordedRun& run, const std::vector<ServerAnswer>& all);

}  // namespace shoal::server
