#include "server/coordinator/testing/fake_servers.h"

#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::server::testing {

FakeServers::FakeServers(EventLoop& loop, FakeDisk& disk, StateStore& store, int count)
    : loop_(loop), disk_(disk), store_(store), servers_(static_cast<size_t>(count)) {}

ServerControlFactory FakeServers::factory() {
  return [this](const std::vector<std::string>& addresses) {
    SHOAL_CHECK(addresses.size() == servers_.size());
    return std::shared_ptr<ServerClient>(std::shared_ptr<void>(), this);
  };
}

void FakeServers::CheckJob(const std::string& id) {
  const SavedState saved = *store_.Load();
  if (saved.jobs.empty() || id != saved.jobs.back().id) {
    Violation(fmt::format("a command for {}, which is not the job", id));
  }
}

// The request arrives after a while, the server acts, works, and the answer takes a while: it can
// die before each.
template <typename Reply>
void FakeServers::Answer(int index, const char* point, absl::Duration work, Done<Reply> done,
                         std::function<absl::StatusOr<Reply>()> act) {
  constexpr absl::Duration kUntilGivenUp =
      absl::Milliseconds(700);  // as the retries of rpc::Channel
  const auto unreachable = [this, done, index] {
    loop_.After(kUntilGivenUp,
                [done, index] { done(Unavailable("server {}: connection refused", index)); });
  };
  loop_.After(loop_.ShortDelay(),
              [this, index, point, work, done, act = std::move(act), unreachable] {
                if (server(index).alive) {
                  hook(point, index);
                }
                if (!server(index).alive) {
                  unreachable();
                  return;
                }
                absl::StatusOr<Reply> reply = act();
                loop_.After(work + loop_.ShortDelay(),
                            [this, index, done, reply = std::move(reply), unreachable] {
                              if (server(index).alive) {
                                done(reply);
                              } else {
                                unreachable();
                              }
                            });
              });
}

void FakeServers::Configure(int index, const proto::ConfigureRequest& request,
                            Done<proto::ConfigureReply> done) {
  Answer<proto::ConfigureReply>(
      index, "configure", absl::ZeroDuration(), std::move(done),
      [this, index, request]() -> absl::StatusOr<proto::ConfigureReply> {
        FakeServer& self = server(index);
        self.configured = true;
        CheckJob(request.job_id());
        self.version = 0;
        if (!request.checkpoint().empty()) {
          for (const auto& [step, checkpoint] : disk_.complete) {
            self.version = checkpoint.path == request.checkpoint() ? step : self.version;
          }
        }
        proto::ConfigureReply reply;
        reply.set_version(self.version);
        if (gpu_bytes != 0) {
          reply.mutable_gpu()->set_gpu(fmt::format("GPU-{}", index));
          reply.mutable_gpu()->set_taken_bytes(gpu_bytes);
          reply.mutable_gpu()->set_client_bytes(gpu_bytes / 10);
        }
        return reply;
      });
}

void FakeServers::BeginAttempt(int index, const proto::BeginAttemptRequest& request,
                               Done<proto::BeginAttemptReply> done) {
  Answer<proto::BeginAttemptReply>(
      index, "begin", absl::ZeroDuration(), std::move(done),
      [this, index, request]() -> absl::StatusOr<proto::BeginAttemptReply> {
        FakeServer& self = server(index);
        const bool newer = request.step() > self.step || request.attempt() > self.attempt;
        if (!self.configured || request.step() != self.version + 1 || !newer) {
          Violation(fmt::format("begin step {} attempt {} at version {}", request.step(),
                                request.attempt(), self.version));
        }
        CheckJob(request.job_id());
        self.step = request.step();
        self.attempt = request.attempt();
        barrier_workers.assign(request.barrier_worker().begin(), request.barrier_worker().end());
        self.sealed = false;
        self.pushes.clear();
        self.samples.clear();
        return proto::BeginAttemptReply();
      });
}

void FakeServers::Prepare(int index, const proto::PrepareRequest& request,
                          Done<proto::PrepareReply> done) {
  const auto act = [this, index, request]() -> absl::StatusOr<proto::PrepareReply> {
    FakeServer& self = server(index);
    if (request.step() != self.step || request.attempt() != self.attempt) {
      Violation(fmt::format("prepare of step {} attempt {} during {} {}", request.step(),
                            request.attempt(), self.step, self.attempt));
    }
    CheckJob(request.job_id());
    self.sealed = true;
    proto::PrepareReply reply;
    for (const auto& [incarnation, pushes] : self.pushes) {
      auto* client = reply.add_clients();
      client->set_incarnation(incarnation);
      client->set_pushes(pushes);
      if (lost_pushes > 0) {
        --lost_pushes;
        client->set_pushes(pushes - 1);
      }
    }
    auto* partition = reply.add_partitions();  // partition k lies on server k
    partition->set_partition(index);
    partition->set_sum_of_squares(static_cast<double>(index + 1));
    partition->set_non_finite(request.step() == non_finite_at_step ? 2 : 0);
    return reply;
  };
  Answer<proto::PrepareReply>(index, "prepare", absl::ZeroDuration(), std::move(done), act);
}

void FakeServers::Commit(int index, const proto::CommitRequest& request,
                         Done<proto::CommitReply> done) {
  const auto act = [this, index, request]() -> absl::StatusOr<proto::CommitReply> {
    FakeServer& self = server(index);
    CheckJob(request.job_id());
    const auto record = store_.Load()->jobs.back().last_commit;
    if (!record.has_value() || record->step != request.step() ||
        record->attempt != request.attempt()) {
      Violation(fmt::format("commit of step {} before its record", request.step()));
    }
    if (!self.sealed || request.step() != self.step || request.attempt() != self.attempt ||
        request.step() != self.version + 1 || self.committed.contains(request.step())) {
      Violation(fmt::format("commit of step {} attempt {} at version {}", request.step(),
                            request.attempt(), self.version));
    }
    self.version = request.step();
    self.committed[request.step()] = self.samples;
    hook("committed", index);
    proto::CommitReply reply;
    reply.set_version(self.version);
    return reply;
  };
  Answer<proto::CommitReply>(index, "commit", absl::ZeroDuration(), std::move(done), act);
}

void FakeServers::WriteCheckpoint(int index, const proto::WriteCheckpointRequest& request,
                                  Done<proto::WriteCheckpointReply> done) {
  const auto act = [this, index, request]() -> absl::StatusOr<proto::WriteCheckpointReply> {
    FakeServer& self = server(index);
    CheckJob(request.job_id());
    proto::WriteCheckpointReply reply;
    if (request.begin()) {
      if (self.version != request.version() || !disk_.shards.contains(request.directory())) {
        Violation(fmt::format("checkpoint of version {} begun at version {}", request.version(),
                              self.version));
      }
      self.pinned.insert(request.version());
      return reply;
    }
    if (!self.pinned.contains(request.version())) {
      Violation(fmt::format("checkpoint of version {} was not begun", request.version()));
    }
    ++disk_.shards[request.directory()];
    reply.add_shards()->set_file(fmt::format("shard-{}", index));
    return reply;
  };
  Answer<proto::WriteCheckpointReply>(index, request.begin() ? "pin" : "write",
                                      request.begin() ? absl::ZeroDuration() : checkpoint_time,
                                      std::move(done), act);
}

void FakeServers::FenceClient(int index, const proto::FenceClientRequest& request,
                              Done<proto::FenceClientReply> done) {
  const auto act = [this, index, request]() -> absl::StatusOr<proto::FenceClientReply> {
    server(index).fenced.insert(request.incarnation());
    return proto::FenceClientReply();
  };
  Answer<proto::FenceClientReply>(index, "fence", absl::ZeroDuration(), std::move(done), act);
}

bool FakeServers::Push(int index, uint64_t incarnation, int64_t step, int64_t attempt,
                       const std::vector<int64_t>& samples) {
  FakeServer& self = server(index);
  if (!self.alive || self.sealed || self.fenced.contains(incarnation) || step != self.step ||
      attempt != self.attempt) {
    return false;
  }
  ++self.pushes[incarnation];
  self.samples.insert(samples.begin(), samples.end());
  return true;
}

}  // namespace shoal::server::testing
