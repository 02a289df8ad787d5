// What one job at a parameter server decides: which commands fit and what they do to its store, who
// may connect, and what a push is answered. Has no threads, clocks, files or sockets, and waits for
// nothing but another call: HostedJob runs it between gRPC and transports, the simulation in a loop
// of events (tests/simulation/sim_servers.h).
//
// Commands of the coordinator are refused once a later term has begun. All but AdmitClients, which
// waits for none, run one at a time and follow StepState. A push is applied under a shared lock on
// the state; Prepare, BeginAttempt and Fence change it under an exclusive one, so that no push is
// half applied when they answer.
//
// Failure: a refused call changes nothing. After the store has failed in Prepare or Commit, every
// later command but AdmitClients and TakeOver returns that failure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/dtype.h"
#include "core/rpc/newest_term.h"
#include "core/transport/data_layout.h"
#include "proto/server.pb.h"
#include "server/service/step_state.h"
#include "server/service/taken_push.h"
#include "server/store/job_store.h"

namespace shoal::server {

// Does to the store what a commit asks for.
absl::Status Apply(const proto::CommitRequest& request, JobStore& store,
                   const Store::Ready& ready = nullptr);

class JobCore {
 public:
  struct Options {
    DType gradient_type = DType::kF32;
    int64_t run = 0;  // of the job
    int64_t generation = 0;
    int64_t partitions = 0;  // of the shard map
    // Closes the connection of a client that may push no more. May be called under locks.
    std::function<void(uint64_t incarnation)> disconnect;
  };
  // `store` has what is pushed to and read, `backups` what other servers have. They and `term`,
  // which commands are to be of, outlive the core.
  JobCore(Options options, JobStore* store, JobStore* backups, rpc::NewestTerm* term);

  // What the caller does about a command, while no other runs: only where it fits.
  using Act = std::function<absl::Status()>;

  // All but what Configure answered. `give_up` ends a checkpoint of an earlier life.
  absl::StatusOr<proto::TakeOverReply> TakeOver(const proto::TakeOverRequest& request,
                                                const std::function<void()>& give_up);
  // `begun`: while pushes are kept out.
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(const proto::BeginAttemptRequest& request,
                                                        const std::function<void()>& begun);
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request);
  // `replicate` loads the gradients of all backups, once an attempt.
  absl::StatusOr<proto::ReplicateReply> Replicate(const proto::ReplicateRequest& request,
                                                  const Act& replicate);
  // Beside commands: a part of a gradient that this server backs up, while the attempt is open.
  absl::StatusOr<proto::TakeGradientReply> TakeGradient(const proto::TakeGradientRequest& request);
  // `update` is Store::Commit, once nobody reads what that changes. Backups follow.
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request, const Act& update);
  // Of WriteCheckpoint.
  absl::Status Pin(const proto::WriteCheckpointRequest& request, const Act& pin);
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums();
  absl::StatusOr<proto::AdmitClientsReply> AdmitClients(const proto::AdmitClientsRequest& request);
  // Refuses that client's pushes, once those under way are applied, and disconnects it.
  void Fence(uint64_t incarnation);

  // `reserve` takes memory for what is to arrive, with the next Fetch or later ones, in place of
  // what was to; once.
  absl::StatusOr<proto::ReserveReply> Reserve(
      const proto::ReserveRequest& request,
      const std::function<absl::StatusOr<int64_t>()>& reserve);
  // `fetch` loads it, once.
  absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest& request, const Act& fetch);
  // Beside commands, but not while a commit changes what is read. Into `slot`, or where that is
  // empty into the answer.
  absl::StatusOr<proto::ReadStateReply> ReadState(const proto::ReadStateRequest& request,
                                                  std::span<std::byte> slot = {}) const;

  // Whether that client may connect.
  absl::Status CheckClient(const proto::ConnectRequest& request) const;
  // Judges a push with a whole header, and applies it.
  PushVerdict TakePush(const ClientIdentity& client, const transport::PushHeader& header,
                       const PushPayload& payload);

  StepState state() const ABSL_LOCKS_EXCLUDED(state_mutex_);
  bool IsFenced(uint64_t incarnation) const ABSL_LOCKS_EXCLUDED(state_mutex_);
  bool HasAdmitted(uint64_t incarnation) const ABSL_LOCKS_EXCLUDED(state_mutex_);

 private:
  bool AreHere(const std::set<int>& partitions, int64_t version) const;
  bool HoldsNothing() const { return store_.held().empty() && backups_.held().empty(); }
  absl::Status CheckReserved(const google::protobuf::RepeatedField<int32_t>& comes,
                             const JobStore& store) const;
  absl::Status CommitStores(const proto::CommitRequest& request, const Act& update);
  absl::Status Hold(const proto::BeginAttemptRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_, commands_mutex_);
  void DisconnectLost(const proto::BeginAttemptRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_mutex_);

  const Options options_;
  JobStore& store_;
  JobStore& backups_;
  rpc::NewestTerm& term_;

  absl::Mutex commands_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);  // one command at a time
  proto::PrepareReply prepared_ ABSL_GUARDED_BY(commands_mutex_);
  proto::CommitRequest committed_ ABSL_GUARDED_BY(commands_mutex_);  // the newest
  bool is_reserved_ ABSL_GUARDED_BY(commands_mutex_) = false;        // something is to arrive
  proto::ReserveRequest reserved_ ABSL_GUARDED_BY(commands_mutex_);  // what
  int64_t reserved_bytes_ ABSL_GUARDED_BY(commands_mutex_) = 0;
  // Whether backups have the gradients of the newest attempt.
  bool replicated_ ABSL_GUARDED_BY(commands_mutex_) = false;

  mutable absl::Mutex state_mutex_;
  StepState state_ ABSL_GUARDED_BY(state_mutex_);
  absl::flat_hash_set<uint64_t> admitted_ ABSL_GUARDED_BY(state_mutex_);  // to connect and push
  absl::flat_hash_set<uint64_t> fenced_ ABSL_GUARDED_BY(state_mutex_);    // whatever was admitted
};

// A checkpoint that a server was told to write.
struct PinnedCheckpoint {
  int64_t version = 0;
  std::string directory;
  bool done = false;  // written, or failed
  bool kept = false;  // written, and nobody has emptied the folder since
};

// Whether a WriteCheckpoint pins the version that is published; else it is about `newest`.
absl::StatusOr<bool> PinsCheckpoint(const proto::WriteCheckpointRequest& request,
                                    const std::optional<PinnedCheckpoint>& newest,
                                    int64_t published);

}  // namespace shoal::server
