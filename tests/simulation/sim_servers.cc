#include "tests/simulation/sim_servers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/status.h"
#include "tests/simulation/process_ids.h"

namespace shoal::simulation {
namespace {

using AnyRequest = google::protobuf::Message;

struct Command {
  const char* point;  // at which a hook may run
  const google::protobuf::FieldDescriptor* term;
};

const Command& CommandOf(const AnyRequest& request) {
  const auto command = [](const AnyRequest& of, const char* point) {
    return std::pair(of.GetDescriptor(),
                     Command{point, of.GetDescriptor()->FindFieldByName("term")});
  };
  static const auto* const kCommands = new std::map<const google::protobuf::Descriptor*, Command>{
      command(proto::TakeOverRequest(), "takeover"),
      command(proto::ConfigureRequest(), "configure"),
      command(proto::BeginAttemptRequest(), "begin"),
      command(proto::PrepareRequest(), "prepare"),
      command(proto::CommitRequest(), "commit"),
      command(proto::WriteCheckpointRequest(), "pin"),
      command(proto::AdmitClientsRequest(), "admit"),
      command(proto::FenceClientRequest(), "fence"),
      command(proto::ReleaseJobRequest(), "release"),
      command(proto::ReserveRequest(), "reserve"),
      command(proto::FetchRequest(), "fetch"),
      command(proto::ReplicateRequest(), "replicate")};
  return kCommands->at(request.GetDescriptor());
}

const char* PointOf(const AnyRequest& request) {
  const auto* write = dynamic_cast<const proto::WriteCheckpointRequest*>(&request);
  return write != nullptr && !write->begin() ? "write" : CommandOf(request).point;
}

int64_t TermOf(const AnyRequest& request) {
  return request.GetReflection()->GetInt64(request, CommandOf(request).term);
}

}  // namespace

SimServers::SimServers(SimContext& context, FindJob job_of, int count)
    : context_(context), job_of_(std::move(job_of)), fabric_(context) {
  for (int index = 0; index < count; ++index) {
    servers_.push_back(std::make_unique<SimServer>(this, index));
    processes_.push_back(std::make_unique<SimProcess>(context.loop, ServerProcess(index),
                                                      fmt::format("server-{}", index)));
    processes_.back()->on_begin = [this, index] { server(index).Forget(); };
    processes_.back()->on_end = [this, index] {
      context_.network.Break(ServerProcess(index));
      fabric_.Break(ServerProcess(index));
    };
  }
}

// Calls of one job, which nobody hears of any more once this is gone.
class SimServers::Client final : public server::ServerClient {
 public:
  Client(SimServers& all, SimProcess& caller, const std::vector<server::Member>& servers)
      : all_(all), caller_(caller) {
    for (const server::Member& server : servers) {
      servers_.push_back(ServerAt(server.address));
      tokens_.push_back(server.command_token);
    }
  }

 protected:
  void Start(int server, const Message& request, Message& reply,
             std::function<absl::Status(rpc::ParameterServerService&)> here,
             std::function<void(const absl::Status&)> done) override {
    using Copy = std::shared_ptr<Message>;
    const int index = servers_[static_cast<size_t>(server)];
    const rpc::Token& token = tokens_[static_cast<size_t>(server)];
    const char* point = PointOf(request);
    SimContext& context = all_.context_;
    all_.context_.network.Call<Copy>(
        caller_, all_.process(index), {.deadline = absl::InfiniteDuration(), .owner = here_},
        [this, index, point, token, term = TermOf(request), here, &context, &reply,
         all = &all_](const auto& answer) {
          context.Note("command", static_cast<uint64_t>(index),
                       [&] { return fmt::format("{} at server-{}", point, index); });
          context.hook(point, index);
          SimProcess& process = all->process(index);
          if (!process.alive()) {
            return;
          }
          if (token.secret() != process.command_token()) {
            answer(Unauthenticated("another process is there"));
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
          slow ? process.After(all->WriteTime(process), execute) : execute();
        },
        [&reply, done = std::move(done), here](const absl::StatusOr<Copy>& copy) {
          if (copy.ok()) {
            reply.CopyFrom(**copy);
          }
          done(copy.status());
        });
  }

 private:
  SimServers& all_;
  SimProcess& caller_;
  std::vector<int> servers_;
  std::vector<rpc::Token> tokens_;
  const std::shared_ptr<void> here_ = std::make_shared<bool>();
};

server::ServerClientFactory SimServers::ClientsOf(SimProcess& caller) {
  return [this, &caller](const std::vector<server::Member>& servers) {
    return std::make_shared<Client>(*this, caller, servers);
  };
}

absl::Duration SimServers::WriteTime(const SimProcess& process) const {
  return checkpoint_time + (process.DiskIsSlow() ? absl::Seconds(2) : absl::ZeroDuration());
}

server::StateReader SimServers::ReaderOf(int reader, const std::string& address) {
  return [this, reader, from = ServerAt(address)](const proto::ReadStateRequest& wanted,
                                                  std::span<float> out) -> absl::Status {
    if (!process(from).alive() || UntilReached(process(reader), process(from)) > 0) {
      return Unavailable("server-{} cannot be reached", from);
    }
    return server::TakeElements(server(from).ReadState(wanted), out);
  };
}

Nanoseconds SimServers::UntilReached(const SimProcess& from, const SimProcess& to) const {
  if (!to.alive()) {
    return 0;
  }
  const SimNetwork& network = context_.network;
  return std::max({to.FrozenFor(), network.CutFor(from.id(), to.id()),
                   network.CutFor(to.id(), from.id()), network.ClogFor(from.id(), to.id())});
}

SimServer::SimServer(SimServers* all, int index) : all_(all), index_(index) {}

void SimServer::LetGo(const std::string& job_id, int64_t run) {
  if (jobs_.Remove(job_id, run) != nullptr) {
    hosted_.reset();
    ++released;
  }
}

void SimServer::Forget() {
  if (hosted_ != nullptr) {
    LetGo(hosted_->request().job_id(), hosted_->request().run());
  }
  jobs_.Forget();
  fenced_.clear();
  term_.Forget();
  version_ = 0;
  highest_term = 0;
}

absl::StatusOr<proto::TakeOverReply> SimServer::TakeOver(const proto::TakeOverRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "TakeOver"));
  const auto job = jobs_.Find(wanted.job_id());
  if (!job.ok() || (*job)->request().run() != wanted.run()) {
    return proto::TakeOverReply();
  }
  SHOAL_ASSIGN_OR_RETURN(proto::TakeOverReply reply, (*job)->core->TakeOver(wanted, [&] {
    (*job)->GiveUpCheckpoint(all_->context_.loop.now());
  }));
  *reply.mutable_configured() = (*job)->reply();
  return reply;
}

std::shared_ptr<SimHostedJob> SimServer::Load(const proto::ConfigureRequest& request) {
  proto::ConfigureReply reply;
  if (all_->gpu_bytes != 0) {
    reply.mutable_gpu()->set_gpu(fmt::format("GPU-{}", index_));
    reply.mutable_gpu()->set_taken_bytes(all_->gpu_bytes);
    reply.mutable_gpu()->set_client_bytes(all_->gpu_bytes / 10);
  }
  return std::make_shared<SimHostedJob>(
      request, reply, all_->job_of_(request.job().checkpoint().directory()), &term_, *all_, index_);
}

absl::StatusOr<proto::ConfigureReply> SimServer::Configure(const proto::ConfigureRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "Configure"));
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> repeated, jobs_.Repeated(wanted));
  if (repeated != nullptr) {
    return repeated->reply();
  }
  SHOAL_RETURN_IF_ERROR(jobs_.BeginLoading(wanted).status());
  hosted_ = Load(wanted);
  jobs_.Loaded(hosted_, wanted.term());
  version_ = hosted_->store->version();
  all_->on_configured(index_);
  return hosted_->reply();
}

absl::StatusOr<proto::BeginAttemptReply> SimServer::BeginAttempt(
    const proto::BeginAttemptRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  return job->core->BeginAttempt(wanted, [&] {
    job->FollowExtents();
    job->backed_at.clear();
    for (const proto::BackupPlace& place : wanted.backups()) {
      for (const int partition : place.partitions()) {
        job->backed_at[partition].push_back(place.address());
      }
    }
    all_->on_begun(index_);
    all_->barrier_workers.assign(wanted.barrier_worker().begin(), wanted.barrier_worker().end());
    fenced_.insert(wanted.lost_worker().begin(), wanted.lost_worker().end());
  });
}

absl::StatusOr<proto::ReserveReply> SimServer::Reserve(const proto::ReserveRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  return job->core->Reserve(wanted, [&] { return job->ReserveExtents(wanted); });
}

absl::StatusOr<proto::FetchReply> SimServer::Fetch(const proto::FetchRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  return job->core->Fetch(wanted, [&] { return job->FetchExtents(wanted); });
}

absl::StatusOr<proto::ReplicateReply> SimServer::Replicate(const proto::ReplicateRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  return job->core->Replicate(wanted, [&] { return job->FetchGradients(wanted); });
}

absl::StatusOr<proto::ReadStateReply> SimServer::ReadState(const proto::ReadStateRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  if (job->request().run() != wanted.run()) {
    return FailedPrecondition("state of another run is wanted");
  }
  return job->core->ReadState(wanted);
}

absl::StatusOr<proto::ConnectStateReply> SimServer::ConnectState(
    const proto::ConnectStateRequest& /*request*/) {
  return Unimplemented("state is in the answers");
}

absl::StatusOr<proto::TakeGradientReply> SimServer::TakeGradient(
    const proto::TakeGradientRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  if (job->request().run() != wanted.run()) {
    return FailedPrecondition("a gradient of another run comes");
  }
  return job->core->TakeGradient(wanted);
}

absl::StatusOr<proto::PrepareReply> SimServer::Prepare(const proto::PrepareRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  SHOAL_ASSIGN_OR_RETURN(proto::PrepareReply reply, job->core->Prepare(wanted));
  if (reply.partitions_size() > 0) {
    if (all_->lost_pushes > 0) {
      --all_->lost_pushes;
      reply.set_pushes(0, reply.pushes(0) - 1);
    }
    const int64_t since = wanted.step() - all_->non_finite_at_step;
    const bool is_bad = since >= 0 && since < all_->non_finite_steps;
    reply.set_non_finite(0, all_->non_finite_at_step > 0 && is_bad ? 2 : 0);
  }
  job->prepared = reply;
  return reply;
}

absl::StatusOr<proto::CommitReply> SimServer::Commit(const proto::CommitRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  bool updated = false;
  const auto update = [&] {
    updated = true;
    return server::Apply(wanted, *job->store);
  };
  SHOAL_ASSIGN_OR_RETURN(proto::CommitReply reply, job->core->Commit(wanted, update));
  if (updated) {
    version_ = job->store->version();
    all_->on_committed(index_);
    all_->context_.hook("committed", index_);
  }
  return reply;
}

absl::StatusOr<proto::WriteCheckpointReply> SimServer::WriteCheckpoint(
    const proto::WriteCheckpointRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  const Nanoseconds now = all_->context_.loop.now();
  const SimProcess& process = all_->process(index_);
  SHOAL_RETURN_IF_ERROR(job->Pin(wanted, now, now + ToNanoseconds(all_->WriteTime(process))));
  proto::WriteCheckpointReply reply;
  if (wanted.begin()) {
    return reply;
  }
  job->checkpoint->written = now;
  if (all_->refused_shards > 0 || process.DiskIsFull()) {
    all_->refused_shards -= all_->refused_shards > 0 ? 1 : 0;
    return ResourceExhausted("no space left on device");
  }
  auto& folders = job->job.disk().shards;
  const auto folder = folders.find(wanted.directory());
  if (folder == folders.end()) {
    return FailedPrecondition("there is no folder {}", wanted.directory());
  }
  folder->second[wanted.server()] = job->checkpoint->shard;
  reply.add_shards()->set_file(fmt::format("shard-{}", wanted.server()));
  return reply;
}

absl::StatusOr<proto::AdmitClientsReply> SimServer::AdmitClients(
    const proto::AdmitClientsRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  return job->core->AdmitClients(wanted);
}

absl::StatusOr<proto::GetChecksumsReply> SimServer::GetChecksums(
    const proto::GetChecksumsRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  return job->core->GetChecksums();
}

absl::StatusOr<proto::FenceClientReply> SimServer::FenceClient(
    const proto::FenceClientRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "FenceClient"));
  SHOAL_RETURN_IF_ERROR(jobs_.Fence(wanted.incarnation()).status());
  fenced_.insert(wanted.incarnation());
  return proto::FenceClientReply();
}

absl::StatusOr<proto::ReleaseJobReply> SimServer::ReleaseJob(
    const proto::ReleaseJobRequest& wanted) {
  SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "ReleaseJob"));
  LetGo(wanted.job_id(), wanted.run());
  return proto::ReleaseJobReply();
}

absl::StatusOr<proto::ConnectReply> SimServer::Connect(const proto::ConnectRequest& wanted) {
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<SimHostedJob> job, jobs_.Find(wanted.job_id()));
  return job->Connect(wanted);
}

}  // namespace shoal::simulation
