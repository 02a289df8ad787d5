// Parameter servers that keep books instead of weights, behind ServerClient. They check the
// protocol (and record every violation), answer after random delays, and can die.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/coordinator/job/server_client.h"
#include "server/coordinator/state/state_store.h"
#include "server/coordinator/testing/event_loop.h"
#include "server/coordinator/testing/fake_job.h"

namespace shoal::server::testing {

class FakeServers;

class FakeServer final : public rpc::ParameterServerService {
 public:
  FakeServer(FakeServers* all, int index) : all_(all), index_(index) {}

  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest& request) override;
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest& request) override;
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request) override;
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request) override;
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request) override;
  absl::StatusOr<proto::FenceClientReply> FenceClient(
      const proto::FenceClientRequest& request) override;
  absl::StatusOr<proto::ReleaseJobReply> ReleaseJob(
      const proto::ReleaseJobRequest& request) override;
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(
      const proto::GetChecksumsRequest&) override {
    return absl::UnimplementedError("there are no weights");
  }
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest&) override {
    return absl::UnimplementedError("there are no weights");
  }

  bool alive = true;
  bool configured = false;
  int released = 0;  // jobs
  int64_t version = -1;
  int64_t step = 0;  // of the attempt that pushes are taken for
  int64_t attempt = 0;
  bool sealed = false;                                  // prepared: no more pushes
  std::map<uint64_t, int64_t> pushes;                   // by incarnation, in this attempt
  std::multiset<int64_t> samples;                       // of this attempt's pushes
  std::map<int64_t, std::multiset<int64_t>> committed;  // step -> samples
  std::set<int64_t> pinned;                             // versions
  std::set<uint64_t> fenced;                            // incarnations

 private:
  void CheckJob(const std::string& id);

  FakeServers* const all_;
  const int index_;
};

// Points at which a test can act: "configure", "begin", "prepare", "commit", "committed", "pin",
// "write", "fence", "release" (on arrival at a server), "work" (a worker got some), "plan".
using Hook = std::function<void(const std::string& point, int index)>;

class FakeServers final : public ServerClient {
 public:
  FakeServers(EventLoop& loop, FakeDisk& disk, StateStore& store, int count);

  // For the only job of a world. This must outlive it.
  ServerClientFactory factory();

  // Takes a worker's push. False: refused (another attempt, sealed, fenced, or the server is dead).
  bool Push(int server, uint64_t incarnation, int64_t step, int64_t attempt,
            const std::vector<int64_t>& samples);

  FakeServer& server(int index) { return servers_[static_cast<size_t>(index)]; }
  const FakeServer& server(int index) const { return servers_[static_cast<size_t>(index)]; }
  int count() const { return static_cast<int>(servers_.size()); }
  const std::vector<std::string>& violations() const { return violations_; }
  void Violation(const std::string& what) { violations_.push_back(what); }

  Hook hook = [](const std::string&, int) {};
  int64_t non_finite_at_step = 0;         // in this step a server reports a non-finite gradient
  std::vector<uint64_t> barrier_workers;  // of the last attempt begun
  int64_t gpu_bytes = 0;                  // taken of a GPU of its own, and a tenth for each client
  int refused_shards = 0;                 // so many servers cannot write theirs
  int lost_pushes = 0;                    // so many prepare calls count one push too few
  absl::Duration checkpoint_time = absl::Milliseconds(5);

 private:
  friend class FakeServer;
  void Start(int server, const Message& request, Message& reply,
             std::function<absl::Status(rpc::ParameterServerService&)> here,
             std::function<void(const absl::Status&)> done) override;

  EventLoop& loop_;
  FakeDisk& disk_;
  StateStore& store_;
  std::vector<FakeServer> servers_;
  std::vector<std::string> violations_;
};

}  // namespace shoal::server::testing
