#include "tests/simulation/fake_servers.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"
#include "google/protobuf/util/message_differencer.h"
#include "tests/simulation/process_ids.h"

namespace shoal::simulation {
namespace {

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// The point at which a hook may run, by request.
const char* PointOf(const google::protobuf::Message& request) {
  static const auto* const kPoints = new std::map<std::string, const char*>{
      {"TakeOverRequest", "takeover"},  {"ConfigureRequest", "configure"},
      {"BeginAttemptRequest", "begin"}, {"PrepareRequest", "prepare"},
      {"CommitRequest", "commit"},      {"WriteCheckpointRequest", "pin"},
      {"AdmitClientsRequest", "admit"}, {"FenceClientRequest", "fence"},
      {"ReleaseJobRequest", "release"}};
  const auto* write = dynamic_cast<const proto::WriteCheckpointRequest*>(&request);
  return write != nullptr && !write->begin() ? "write"
                                             : kPoints->at(request.GetDescriptor()->name());
}

int64_t TermOf(const google::protobuf::Message& request) {
  const auto* term = request.GetDescriptor()->FindFieldByName("term");
  return request.GetReflection()->GetInt64(request, term);
}

}  // namespace

uint64_t NextWeights(uint64_t weights, int64_t step, const std::vector<int64_t>& samples) {
  uint64_t sum = 0;  // in any order
  for (const int64_t sample : samples) {
    sum += Mix(static_cast<uint64_t>(sample) + 1);
  }
  return Mix(weights * 31 + static_cast<uint64_t>(step)) + sum;
}

FakeServers::FakeServers(SimContext& context, DiskOf disk_of, int count)
    : context_(context), disk_of_(std::move(disk_of)) {
  for (int index = 0; index < count; ++index) {
    servers_.push_back(std::make_unique<FakeServer>(this, index));
    processes_.push_back(std::make_unique<SimProcess>(context.loop, ServerProcess(index),
                                                      fmt::format("server-{}", index)));
    processes_.back()->on_begin = [this, index] { server(index).Forget(); };
    processes_.back()->on_end = [this, index] { context_.network.Break(ServerProcess(index)); };
  }
}

// Calls of one job, which nobody hears of any more once this is gone.
class FakeServers::Client final : public server::ServerClient {
 public:
  Client(FakeServers& all, SimProcess& caller, const std::vector<std::string>& addresses)
      : all_(all), caller_(caller) {
    for (const std::string& address : addresses) {
      servers_.push_back(ServerAt(address));
    }
  }

 protected:
  void Start(int server, const Message& request, Message& reply,
             std::function<absl::Status(rpc::ParameterServerService&)> here,
             std::function<void(const absl::Status&)> done) override {
    using Copy = std::shared_ptr<Message>;
    const int index = servers_[static_cast<size_t>(server)];
    const char* point = PointOf(request);
    SimContext& context = all_.context_;
    all_.context_.network.Call<Copy>(
        caller_, all_.process(index), {.deadline = absl::InfiniteDuration(), .owner = here_},
        [this, index, point, term = TermOf(request), here, &context, &reply,
         all = &all_](const auto& answer) {
          context.Note("command", static_cast<uint64_t>(index),
                       [&] { return fmt::format("{} at server-{}", point, index); });
          context.hook(point, index);
          SimProcess& process = all->process(index);
          if (!process.alive()) {
            return;
          }
          const auto execute = [all, index, here, answer, term, &reply] {
            const absl::Status status = here(all->server(index));
            if (status.ok()) {
              all->on_obeyed(index, term);
            }
            Copy copy(reply.New());
            copy->CopyFrom(reply);
            status.ok() ? answer(copy) : answer(status);
          };
          const bool slow =
              point == std::string_view("write") || context.faults.Fires(point, context.loop.now());
          slow ? process.After(all->checkpoint_time, execute) : execute();
        },
        [&reply, done = std::move(done), here](const absl::StatusOr<Copy>& copy) {
          if (copy.ok()) {
            reply.CopyFrom(**copy);
          }
          done(copy.status());
        });
  }

 private:
  FakeServers& all_;
  SimProcess& caller_;
  std::vector<int> servers_;
  const std::shared_ptr<void> here_ = std::make_shared<bool>();
};

server::ServerClientFactory FakeServers::ClientsOf(SimProcess& caller) {
  return [this, &caller](const std::vector<std::string>& addresses) {
    return std::make_shared<Client>(*this, caller, addresses);
  };
}

FakeServer::FakeServer(FakeServers* all, int index) : all_(all), index_(index) {}

void FakeServer::Forget() {
  term_.Forget();
  configured = false;
  job_id.clear();
  state = server::StepState();
  newest_commit.Clear();
  weights = 0;
  highest_term = 0;
  keys.Clear();
  samples.clear();
  pinned.clear();
  admitted.clear();
  fenced.clear();
}

absl::Status FakeServer::CheckJob(const std::string& id) const {
  if (!configured) {
    return NotFound("{} is not here: this server is not configured", id);
  }
  return id == job_id ? absl::OkStatus()
                      : NotFound("{} is not here; this server holds {}", id, job_id);
}

absl::StatusOr<proto::TakeOverReply> FakeServer::TakeOver(const proto::TakeOverRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "a command"));
  proto::TakeOverReply reply;
  if (!CheckJob(wanted.job_id()).ok() || request.run() != wanted.run()) {
    return reply;
  }
  pinned.clear();
  reply.set_holds(true);
  reply.set_version(state.version());
  reply.set_generation(state.generation());
  reply.set_step(state.step());
  reply.set_attempt(state.attempt());
  reply.set_phase(state.phase() == server::Phase::kOpen     ? proto::ATTEMPT_PHASE_OPEN
                  : state.phase() == server::Phase::kSealed ? proto::ATTEMPT_PHASE_SEALED
                                                            : proto::ATTEMPT_PHASE_NONE);
  *reply.mutable_committed() = newest_commit;
  return reply;
}

absl::StatusOr<proto::ConfigureReply> FakeServer::Configure(const proto::ConfigureRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "a command"));
  if (configured && wanted.job_id() == job_id && request.run() < wanted.run()) {
    configured = false;
    pinned.clear();
  }
  if (configured && wanted.job_id() != job_id) {
    return AlreadyExists("this server cannot take {}: it holds {} already", wanted.job_id(),
                         job_id);
  }
  proto::ConfigureRequest same = wanted;
  same.clear_term();  // a later life's is the same job
  if (configured && !google::protobuf::util::MessageDifferencer::Equals(same, request)) {
    return AlreadyExists("{} is configured already", job_id);
  }
  if (!configured) {
    configured = true;
    job_id = wanted.job_id();
    request = same;
    disk = &all_->disk_of_(wanted.job().checkpoint().directory());
    committed.clear();
    admitted.clear();
    newest_commit.Clear();
    int64_t version = 0;
    weights = 0;
    for (const auto& [step, checkpoint] : disk->complete) {
      if (checkpoint.path == wanted.checkpoint()) {
        version = step;
        weights = disk->weights[checkpoint.path];
      }
    }
    state = server::StepState(version, wanted.shard_map().generation());
    all_->on_configured(index_);
  }
  proto::ConfigureReply reply;
  reply.set_version(state.version());
  if (all_->gpu_bytes != 0) {
    reply.mutable_gpu()->set_gpu(fmt::format("GPU-{}", index_));
    reply.mutable_gpu()->set_taken_bytes(all_->gpu_bytes);
    reply.mutable_gpu()->set_client_bytes(all_->gpu_bytes / 10);
  }
  return reply;
}

absl::StatusOr<proto::BeginAttemptReply> FakeServer::BeginAttempt(
    const proto::BeginAttemptRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(Admit(wanted));
  SHOAL_ASSIGN_OR_RETURN(const server::Decision decision,
                         state.BeginAttempt(wanted.step(), wanted.attempt(), wanted.generation()));
  if (decision == server::Decision::kExecute) {
    state.Opened(wanted.step(), wanted.attempt());
    all_->barrier_workers.assign(wanted.barrier_worker().begin(), wanted.barrier_worker().end());
    fenced.insert(wanted.lost_worker().begin(), wanted.lost_worker().end());
    keys.Clear();
    samples.clear();
  }
  return proto::BeginAttemptReply();
}

absl::StatusOr<proto::PrepareReply> FakeServer::Prepare(const proto::PrepareRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(Admit(wanted));
  SHOAL_ASSIGN_OR_RETURN(const server::Decision decision,
                         state.Prepare(wanted.step(), wanted.attempt()));
  if (decision == server::Decision::kExecute) {
    state.Sealed();
  }
  proto::PrepareReply reply;
  auto* partition = reply.add_partitions();  // partition k is on server k
  partition->set_partition(request.server_index());
  partition->set_sum_of_squares(static_cast<double>(request.server_index() + 1));
  partition->set_pushes(keys.count());
  if (all_->lost_pushes > 0) {
    --all_->lost_pushes;
    partition->set_pushes(partition->pushes() - 1);
  }
  partition->set_non_finite(wanted.step() == all_->non_finite_at_step ? 2 : 0);
  return reply;
}

absl::StatusOr<proto::CommitReply> FakeServer::Commit(const proto::CommitRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(Admit(wanted));
  SHOAL_ASSIGN_OR_RETURN(const server::Decision decision,
                         state.Commit(wanted.step(), wanted.attempt()));
  if (decision == server::Decision::kExecute) {
    state.Committing();
    weights = NextWeights(weights, wanted.step(), samples);
    committed[wanted.step()] = samples;
    state.Committed();
    newest_commit = wanted;
    all_->on_committed(index_);
    all_->context_.hook("committed", index_);
  }
  proto::CommitReply reply;
  reply.set_version(wanted.step());
  return reply;
}

absl::StatusOr<proto::WriteCheckpointReply> FakeServer::WriteCheckpoint(
    const proto::WriteCheckpointRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(Admit(wanted));
  proto::WriteCheckpointReply reply;
  if (!pinned.contains(wanted.version())) {
    if (wanted.version() != state.version()) {
      return FailedPrecondition("cannot write the checkpoint of step {}: version {} is published",
                                wanted.version(), state.version());
    }
    pinned[wanted.version()] = weights;
  }
  if (wanted.begin()) {
    return reply;
  }
  if (all_->refused_shards > 0) {
    --all_->refused_shards;
    return ResourceExhausted("no space left on device");
  }
  const auto folder = disk->shards.find(wanted.directory());
  if (folder == disk->shards.end()) {
    return FailedPrecondition("there is no folder {}", wanted.directory());
  }
  folder->second[request.server_index()] = pinned[wanted.version()];
  reply.add_shards()->set_file(fmt::format("shard-{}", request.server_index()));
  return reply;
}

absl::StatusOr<proto::AdmitClientsReply> FakeServer::AdmitClients(
    const proto::AdmitClientsRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(Admit(wanted));
  admitted.insert(wanted.incarnation().begin(), wanted.incarnation().end());
  return proto::AdmitClientsReply();
}

absl::StatusOr<proto::FenceClientReply> FakeServer::FenceClient(
    const proto::FenceClientRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "a command"));
  fenced.insert(wanted.incarnation());
  return proto::FenceClientReply();
}

absl::StatusOr<proto::ReleaseJobReply> FakeServer::ReleaseJob(
    const proto::ReleaseJobRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "a command"));
  if (configured && wanted.job_id() == job_id) {
    configured = false;
    pinned.clear();
    ++released;
  }
  return proto::ReleaseJobReply();
}

absl::Status FakeServer::Push(const std::string& id, uint64_t incarnation, int64_t key,
                              int64_t step, int64_t attempt, const std::vector<int64_t>& pushed) {
  SHOAL_RETURN_IF_ERROR(CheckJob(id));
  if (!state.TakesPushes() || !admitted.contains(incarnation) || fenced.contains(incarnation) ||
      !state.IsCurrentAttempt(step, attempt)) {
    return FailedPrecondition("push refused");
  }
  if (all_->context_.faults.Fires("a push is acknowledged and lost", all_->context_.loop.now())) {
    return absl::OkStatus();
  }
  if (keys.Insert(key) == server::KeySet::Outcome::kNew) {
    samples.insert(samples.end(), pushed.begin(), pushed.end());
  }
  return absl::OkStatus();
}

}  // namespace shoal::simulation
