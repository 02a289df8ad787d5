// Parameter servers that keep books instead of weights, behind ServerClient. They insist on the
// protocol (every violation is recorded), answer after random delays, and can die.
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

struct FakeServer {
  bool alive = true;
  bool configured = false;
  int64_t version = -1;
  int64_t step = 0;  // of the attempt that pushes are taken for
  int64_t attempt = 0;
  bool sealed = false;                                  // prepared: no more pushes
  std::map<uint64_t, int64_t> pushes;                   // by incarnation, in this attempt
  std::multiset<int64_t> samples;                       // that the pushes of this attempt stand for
  std::map<int64_t, std::multiset<int64_t>> committed;  // step -> samples
  std::set<int64_t> pinned;                             // versions
  std::set<uint64_t> fenced;                            // incarnations
};

// Where something may be made to happen: "configure", "begin", "prepare", "commit", "committed",
// "pin", "write", "fence" (on arrival at a server), "work" (a worker got some), "plan".
using Hook = std::function<void(const std::string& point, int index)>;

class FakeServers final : public ServerClient {
 public:
  FakeServers(EventLoop& loop, FakeDisk& disk, StateStore& store, int count);

  // For the one job of a world: it outlives it.
  ServerControlFactory factory();
  void Configure(int server, const proto::ConfigureRequest& request,
                 Done<proto::ConfigureReply> done) override;
  void BeginAttempt(int server, const proto::BeginAttemptRequest& request,
                    Done<proto::BeginAttemptReply> done) override;
  void Prepare(int server, const proto::PrepareRequest& request,
               Done<proto::PrepareReply> done) override;
  void Commit(int server, const proto::CommitRequest& request,
              Done<proto::CommitReply> done) override;
  void WriteCheckpoint(int server, const proto::WriteCheckpointRequest& request,
                       Done<proto::WriteCheckpointReply> done) override;
  void FenceClient(int server, const proto::FenceClientRequest& request,
                   Done<proto::FenceClientReply> done) override;

  // From a worker. False: refused (another attempt, sealed, fenced, or the server is dead).
  bool Push(int server, uint64_t incarnation, int64_t step, int64_t attempt,
            const std::vector<int64_t>& samples);

  FakeServer& server(int index) { return servers_[static_cast<size_t>(index)]; }
  const FakeServer& server(int index) const { return servers_[static_cast<size_t>(index)]; }
  int count() const { return static_cast<int>(servers_.size()); }
  const std::vector<std::string>& violations() const { return violations_; }
  void Violation(const std::string& what) { violations_.push_back(what); }

  Hook hook = [](const std::string&, int) {};
  int64_t non_finite_at_step = 0;         // a server reports a non-finite gradient there
  std::vector<uint64_t> barrier_workers;  // of the last attempt begun
  int64_t gpu_bytes = 0;                  // taken of a GPU of its own, and a tenth for each client
  int lost_pushes = 0;                    // so many prepare calls count one push too few
  absl::Duration checkpoint_time = absl::Milliseconds(5);

 private:
  template <typename Reply>
  void Answer(int server, const char* point, absl::Duration work, Done<Reply> done,
              std::function<absl::StatusOr<Reply>()> act);

  void CheckJob(const std::string& id);

  EventLoop& loop_;
  FakeDisk& disk_;
  StateStore& store_;
  std::vector<FakeServer> servers_;
  std::vector<std::string> violations_;
};

}  // namespace shoal::server::testing
