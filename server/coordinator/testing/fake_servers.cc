#include "server/coordinator/testing/fake_servers.h"

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::server::testing {

FakeServers::FakeServers(EventLoop& loop, FakeDisk& disk, StateStore& store, int count)
    : loop_(loop), disk_(disk), store_(store) {
  for (int index = 0; index < count; ++index) {
    servers_.emplace_back(this, index);
  }
}

ServerClientFactory FakeServers::factory() {
  return [this](const std::vector<std::string>& addresses) {
    SHOAL_CHECK(addresses.size() == servers_.size());
    return std::shared_ptr<ServerClient>(std::shared_ptr<void>(), this);
  };
}

// The point at which a hook may run, by request.
std::string PointOf(const google::protobuf::Message& request) {
  static const auto* const kPoints = new std::map<std::string, std::string>{
      {"ConfigureRequest", "configure"}, {"BeginAttemptRequest", "begin"},
      {"PrepareRequest", "prepare"},     {"CommitRequest", "commit"},
      {"WriteCheckpointRequest", "pin"}, {"FenceClientRequest", "fence"},
      {"ReleaseJobRequest", "release"}};
  const auto* write = dynamic_cast<const proto::WriteCheckpointRequest*>(&request);
  return write != nullptr && !write->begin() ? "write"
                                             : kPoints->at(request.GetDescriptor()->name());
}

// Delivers the request after a delay; the server acts, works, and answers after another delay. It
// can die before each.
void FakeServers::Start(int index, const Message& request, Message& /*reply*/,
                        std::function<absl::Status(rpc::ParameterServerService&)> here,
                        std::function<void(const absl::Status&)> done) {
  constexpr absl::Duration kUntilGivenUp =
      absl::Milliseconds(700);  // as the retries of rpc::Channel
  const std::string point = PointOf(request);
  const absl::Duration work = point == "write" ? checkpoint_time : absl::ZeroDuration();
  const auto unreachable = [this, done, index] {
    loop_.After(kUntilGivenUp,
                [done, index] { done(Unavailable("server {}: connection refused", index)); });
  };
  loop_.After(loop_.ShortDelay(), [this, index, point, work, done, here, unreachable] {
    if (server(index).alive) {
      hook(point, index);
    }
    if (!server(index).alive) {
      unreachable();
      return;
    }
    const absl::Status status = here(server(index));
    loop_.After(work + loop_.ShortDelay(), [this, index, done, status, unreachable] {
      if (server(index).alive) {
        done(status);
      } else {
        unreachable();
      }
    });
  });
}

void FakeServer::CheckJob(const std::string& id) {
  const SavedState saved = *all_->store_.Load();
  if (saved.jobs.empty() || id != saved.jobs.back().id) {
    all_->Violation(fmt::format("a command for {}, which is not the job", id));
  }
}

absl::StatusOr<proto::ConfigureReply> FakeServer::Configure(
    const proto::ConfigureRequest& request) {
  configured = true;
  CheckJob(request.job_id());
  version = 0;
  if (!request.checkpoint().empty()) {
    for (const auto& [step, checkpoint] : all_->disk_.complete) {
      version = checkpoint.path == request.checkpoint() ? step : version;
    }
  }
  proto::ConfigureReply reply;
  reply.set_version(version);
  if (all_->gpu_bytes != 0) {
    reply.mutable_gpu()->set_gpu(fmt::format("GPU-{}", index_));
    reply.mutable_gpu()->set_taken_bytes(all_->gpu_bytes);
    reply.mutable_gpu()->set_client_bytes(all_->gpu_bytes / 10);
  }
  return reply;
}

absl::StatusOr<proto::BeginAttemptReply> FakeServer::BeginAttempt(
    const proto::BeginAttemptRequest& request) {
  const bool newer = request.step() > step || request.attempt() > attempt;
  if (!configured || request.step() != version + 1 || !newer) {
    all_->Violation(fmt::format("begin step {} attempt {} at version {}", request.step(),
                                request.attempt(), version));
  }
  CheckJob(request.job_id());
  step = request.step();
  attempt = request.attempt();
  all_->barrier_workers.assign(request.barrier_worker().begin(), request.barrier_worker().end());
  sealed = false;
  pushes.clear();
  samples.clear();
  return proto::BeginAttemptReply();
}

absl::StatusOr<proto::PrepareReply> FakeServer::Prepare(const proto::PrepareRequest& request) {
  if (request.step() != step || request.attempt() != attempt) {
    all_->Violation(fmt::format("prepare of step {} attempt {} during {} {}", request.step(),
                                request.attempt(), step, attempt));
  }
  CheckJob(request.job_id());
  sealed = true;
  proto::PrepareReply reply;
  for (const auto& [incarnation, count] : pushes) {
    auto* client = reply.add_clients();
    client->set_incarnation(incarnation);
    client->set_pushes(count);
    if (all_->lost_pushes > 0) {
      --all_->lost_pushes;
      client->set_pushes(count - 1);
    }
  }
  auto* partition = reply.add_partitions();  // partition k is on server k
  partition->set_partition(index_);
  partition->set_sum_of_squares(static_cast<double>(index_ + 1));
  partition->set_non_finite(request.step() == all_->non_finite_at_step ? 2 : 0);
  return reply;
}

absl::StatusOr<proto::CommitReply> FakeServer::Commit(const proto::CommitRequest& request) {
  CheckJob(request.job_id());
  const auto record = all_->store_.Load()->jobs.back().last_commit;
  if (!record.has_value() || record->step != request.step() ||
      record->attempt != request.attempt()) {
    all_->Violation(fmt::format("commit of step {} before its record", request.step()));
  }
  if (!sealed || request.step() != step || request.attempt() != attempt ||
      request.step() != version + 1 || committed.contains(request.step())) {
    all_->Violation(fmt::format("commit of step {} attempt {} at version {}", request.step(),
                                request.attempt(), version));
  }
  version = request.step();
  committed[request.step()] = samples;
  all_->hook("committed", index_);
  proto::CommitReply reply;
  reply.set_version(version);
  return reply;
}

absl::StatusOr<proto::WriteCheckpointReply> FakeServer::WriteCheckpoint(
    const proto::WriteCheckpointRequest& request) {
  CheckJob(request.job_id());
  proto::WriteCheckpointReply reply;
  if (request.begin()) {
    if (version != request.version() || !all_->disk_.shards.contains(request.directory())) {
      all_->Violation(
          fmt::format("checkpoint of version {} begun at version {}", request.version(), version));
    }
    pinned.insert(request.version());
    return reply;
  }
  if (!pinned.contains(request.version())) {
    all_->Violation(fmt::format("checkpoint of version {} was not begun", request.version()));
  }
  if (all_->refused_shards > 0) {
    --all_->refused_shards;
    return ResourceExhausted("no space left on device");
  }
  ++all_->disk_.shards[request.directory()];
  reply.add_shards()->set_file(fmt::format("shard-{}", index_));
  return reply;
}

absl::StatusOr<proto::FenceClientReply> FakeServer::FenceClient(
    const proto::FenceClientRequest& request) {
  fenced.insert(request.incarnation());
  return proto::FenceClientReply();
}

absl::StatusOr<proto::ReleaseJobReply> FakeServer::ReleaseJob(const proto::ReleaseJobRequest&) {
  configured = false;
  ++released;
  return proto::ReleaseJobReply();
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
