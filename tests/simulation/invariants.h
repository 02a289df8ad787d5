// What must hold in every run, looked at whenever something happens that could break it. Numbers
// are those of the design:
//   I1  a step is recorded once, and versions rise by 1
//   I2  recorded: every server had the weights before it and has sealed its gradient
//   I3  recorded: each push counts once, none is missing (and I16: each sample once per step)
//   I4  recorded: of each partition one server has taken the pushes
//   I5  a run begins at the newest complete checkpoint
//   I8  no command of an earlier life of the coordinator changes a server after one of a later life
//   I9  no incarnation is given twice, and one whose lease was over is not listened to again
//   I11 bytes that are told to have moved are those of the state that servers got
//   I12 partitions are balanced over servers, but for one, once no wave is to follow
//   I13 a server that begins an attempt has memory for what it holds, and for nothing else
//   I14, I15  what watchers are told (sim_command.h)
//   I20 a job that was stopped records the step under way and no more
//   I17 it ends (sim_world.h)
//   I19 a job fails only by what is lost, full or told wrongly (scenario.cc)
//   I21 a job that is to fail by the loss of a server is not restored after one
//   I22 a server that was told to leave costs no step (sim_command.h)
//   I23 only a job that was stopped ends as interrupted (scenario.cc)
//   I24 who joins by a shard map that is recorded has it and its servers as they are there, with
//       the readers that are its own
//   I18 weights and moments have the bits of a run in which nothing goes wrong (and I6: so has
//       everybody who has a partition, backups too)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/coordinator/state/state_store.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_job.h"
#include "tests/simulation/sim_servers.h"

namespace shoal::simulation {

class Invariants {
 public:
  Invariants(SimContext& context, SimServers& servers) : context_(context), servers_(servers) {}

  // `moved`: bytes, over all that this coordinator has told.
  void OnRecorded(const std::string& job_id, const server::CommitRecord& record, double moved);
  void OnRunSaved(const std::string& job_id, const proto::SavedRun& run);
  void OnJoined(const std::string& worker, uint64_t incarnation, const proto::JoinJobReply& join);
  void OnBegun(int server);
  // By a coordinator whose successor has begun: it may be that no server hears of it any more.
  void OnRecordedBeside(const std::string& job_id, const server::CommitRecord& record);
  // From then on, in this life of the coordinator, only the step under way may be recorded.
  void OnStopped(int64_t term, const std::string& job_id) { stopped_[job_id].term = term; }
  void OnStarted(int64_t term, double moved);
  void OnConfigured(int server);
  void OnCommitted(int server);
  void OnObeyed(int server, int64_t term);
  void OnPushed(int server, uint64_t incarnation);
  void OnRegistered(int process, int64_t life, uint64_t incarnation);
  // What a life of the coordinator answered to one that said who it is.
  void OnAnswered(int64_t term, uint64_t incarnation, const absl::Status& status);
  // That is one again of which this life had no record.
  void OnCameBack(int64_t term, uint64_t incarnation) { refused_.erase({term, incarnation}); }

 private:
  struct History {
    int64_t recorded = 0;    // the last step
    int64_t configured = 0;  // how often servers had been, by then
  };
  struct Stopped {
    int64_t term = 0;  // of the coordinator
    int recorded = 0;  // steps since
  };
  void CheckBits(int server, const char* when);
  void CheckSums(const SimHostedJob& hosted, int server, int64_t step);
  void CheckRestored(SimJob& job, int64_t version);
  void CheckMoved(double moved);
  const SimHostedJob* FindHosted(const std::string& job_id) const;

  SimContext& context_;
  SimServers& servers_;
  std::map<std::string, History> histories_;  // by job id
  std::map<std::string, Stopped> stopped_;    // by job id
  int64_t term_ = 0;                          // of the coordinator's newest life
  int64_t configured_ = 0;
  std::map<std::string, proto::SavedRun> runs_;  // by job id, as saved last
  double told_ = 0;                              // bytes moved, by this life of the coordinator
  double owed_ = 0;                              // that it has yet to tell
  std::map<uint64_t, std::pair<int, int64_t>> incarnations_;  // process and life
  std::set<std::pair<int64_t, uint64_t>> refused_;            // term of the coordinator
};

}  // namespace shoal::simulation
