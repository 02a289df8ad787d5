#include "server/coordinator/testing/many_members.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "server/coordinator/testing/empty_server.h"

namespace shoal::server::testing {
namespace {

constexpr int kPartitionsOfAUnit = 800;
constexpr int kElementsOfAPartition = 1 << 20;
constexpr int64_t kBytesOfAPartition = int64_t{12} * kElementsOfAPartition;
constexpr const char* kVersion = "test";

int UnitOf(int partition) { return partition / kPartitionsOfAUnit; }

// Each group gets as many packs, of one sample each.
class EvenSteps final : public StepPlanner {
 public:
  explicit EvenSteps(int packs) : packs_(packs) {}
  absl::StatusOr<plan::StepPlan> Plan(int64_t /*step*/, const PlanInputs& inputs) const override {
    plan::StepPlan plan;
    plan.workers.resize(static_cast<size_t>(inputs.groups));
    for (int64_t pack = 0; pack < int64_t{packs_} * inputs.groups; ++pack) {
      const int64_t targets = FakeSteps::Targets(pack);
      plan.workers[static_cast<size_t>(pack % inputs.groups)].push_back(
          {.samples = {pack}, .tokens = 10, .targets = targets, .number = pack});
      plan.tokens += 10;
      plan.targets += targets;
      plan.weight += static_cast<double>(targets);
    }
    return plan;
  }
  absl::StatusOr<plan::StepPlan> PlanValidation(const PlanInputs& inputs) const override {
    return Plan(0, inputs);
  }
  absl::StatusOr<plan::StepPlan> PlanForward(bool, int64_t, int64_t,
                                             const PlanInputs& inputs) const override {
    return Plan(0, inputs);
  }
  double LearningRate(int64_t /*step*/) const override { return 1; }

 private:
  const int packs_;
};

}  // namespace

// Knows which partitions it holds.
class ManyMembers::Server final : public EmptyServer {
 public:
  Server(FakeDisk& disk, int64_t packs) : EmptyServer(disk), packs_(packs) {}

  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest& request) override {
    held_ = plan::PartitionsOf(plan::FromMessage(request.shard_map()), request.server_index());
    return EmptyServer::Configure(request);
  }
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest& request) override {
    if (request.has_held()) {
      held_.assign(request.held().partitions().begin(), request.held().partitions().end());
    }
    return proto::BeginAttemptReply();
  }
  absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest& request) override {
    proto::FetchReply reply;
    for (const proto::PartitionSource& source : request.sources()) {
      reply.set_bytes(reply.bytes() + source.partitions_size() * kBytesOfAPartition);
    }
    return reply;
  }
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest&) override {
    return std::move(prepared_);
  }
  // Makes the answer to the next Prepare.
  void GetReady() {
    prepared_.Clear();
    for (const int id : held_) {
      prepared_.add_partitions(id);
      prepared_.add_sums_of_squares(1);
      prepared_.add_non_finite(0);
      prepared_.add_pushes(packs_);
    }
  }

 private:
  const int64_t packs_;  // of a step
  std::vector<int> held_;
  proto::PrepareReply prepared_;
};

class ManyMembers::Servers final : public ServerClient {
 public:
  Servers(ManyMembers& all, const std::vector<Member>& members) : all_(all) {
    for (const Member& member : members) {
      servers_.push_back(all.servers_[static_cast<size_t>(member.index)].get());
    }
  }

 private:
  void Start(int server, const Message& /*request*/, Message& /*reply*/,
             std::function<absl::Status(rpc::ParameterServerService&)> here,
             std::function<void(const absl::Status&)> done) override {
    all_.calls_.push_back([to = servers_[static_cast<size_t>(server)], here = std::move(here),
                           done = std::move(done)] { done(here(*to)); });
  }

  ManyMembers& all_;
  std::vector<Server*> servers_;
};

struct ManyMembers::Worker {
  uint64_t incarnation = 0;
  proto::NextStepReply answer;  // the last: its part, where it has joined anew, and work
  proto::KnownMap known;
  proto::NextStepRequest question;
};

ManyMembers::ManyMembers(const Options& options) : options_(options) {
  const int64_t packs = int64_t{options.packs} * options.workers;
  for (int server = 0; server < options.servers + options.spares; ++server) {
    servers_.push_back(std::make_unique<Server>(disk_, packs));
  }
  const auto later = [this](std::function<void()> work) { later_.push_back(std::move(work)); };
  core_ = std::make_unique<CoordinatorCore>(
      MembershipOptions{.version = kVersion, .lease = absl::Hours(1000), .cluster = 1},
      JobEnvironment{.clock = clock_,
                     .make_clients =
                         [this](const std::vector<Member>& members) {
                           return std::make_shared<Servers>(*this, members);
                         },
                     .store = *store_,
                     .metrics = coordinator_metrics_,
                     .post = [](const std::function<void()>& work) { work(); },
                     .plan = later,
                     .disk = later,
                     .stays = true,
                     .reached =
                         [this](std::string_view point) {
                           planned_at_borders_ += point == "planned at the border" ? 1 : 0;
                         }});
  for (int server = 0; server < options.servers + options.spares; ++server) {
    Register(proto::ROLE_SERVER, server);
  }
  for (int index = 0; index < options.workers; ++index) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->incarnation = Register(proto::ROLE_WORKER, index);
  }
  SHOAL_CHECK(core_->Submit(MakeJob(), /*newest=*/std::nullopt, /*resume=*/false).ok());
  Work();
  for (const auto& worker : workers_) {
    worker->known = workers_.front()->known;
    *worker->answer.mutable_join() = Join(*worker, worker->known);
    LearnPart(*worker);
    SHOAL_CHECK(Ask(*worker));
  }
}

ManyMembers::~ManyMembers() {
  core_->ReleaseServers();
  core_.reset();
}

LoadedJob ManyMembers::MakeJob() {
  LoadedJob job = MakeFakeJob(
      {.steps = 1'000'000, .servers = options_.servers, .workers = options_.workers}, disk_);
  job.steps = std::make_unique<EvenSteps>(options_.packs);
  job.job.service.replicas = options_.replicas;
  job.job.service.read_replicas = options_.read_replicas;
  if (options_.exchange) {
    job.job.train.synchronization = plan::Synchronization::kLayer;
    job.job.train.device = plan::DeviceKind::kCuda;
  }
  const auto units = static_cast<size_t>(UnitOf(options_.partitions - 1) + 1);
  job.pushes = {.unit_elements = std::vector<int64_t>(units, kPartitionsOfAUnit),
                .per_pack = {std::vector<int>(units, 1)}};
  for (int id = 0; id < options_.partitions; ++id) {
    job.pushes.partitions.push_back({.id = id,
                                     .unit = UnitOf(id),
                                     .offset = id % kPartitionsOfAUnit,
                                     .count = kElementsOfAPartition});
  }
  job.place_shards = [partitions = job.pushes.partitions](int servers) {
    return plan::PlaceShards(partitions, servers, /*generation=*/1);
  };
  return job;
}

uint64_t ManyMembers::Register(proto::Role role, int index) {
  const int host = index % options_.hosts;
  proto::RegisterRequest request;
  request.set_role(role);
  request.set_version(kVersion);
  request.set_index(index);
  request.set_stays(true);
  request.set_nonce(static_cast<uint64_t>(index) + 1);
  request.set_host(fmt::format("host-{}.example", host));
  request.set_address(fmt::format("host-{}.example:{}", host, 40'000 + index));
  const auto reply = core_->Register(request);
  SHOAL_CHECK(reply.ok());
  return reply->incarnation();
}

void ManyMembers::Answer() {
  while (!calls_.empty()) {
    std::exchange(calls_.front(), nullptr)();
    calls_.pop_front();
  }
}

void ManyMembers::Work() {
  for (Answer(); !later_.empty(); Answer()) {
    std::exchange(later_.front(), nullptr)();
    later_.pop_front();
  }
}

// As Coordinator does after each call.
void ManyMembers::Notice() {
  SHOAL_CHECK(core_->changes() > 0);
  next_tick_ = core_->NextTick();
}

proto::JoinJobReply ManyMembers::Join(const Worker& worker, const proto::KnownMap& known) {
  proto::JoinJobRequest request;
  request.set_incarnation(worker.incarnation);
  *request.mutable_known() = known;
  auto reply = core_->Join(request);
  ++questions_;
  Notice();
  SHOAL_CHECK(reply.ok() && reply->has_value());
  return **std::move(reply);
}

// As worker::WorkerCore does.
void ManyMembers::LearnPart(Worker& worker) {
  const proto::JoinJobReply& join = worker.answer.join();
  if (!join.ready()) {
    return;  // it has not joined since the last step
  }
  if (join.has_map_change()) {
    worker.known.set_generation(plan::ChangeFromBytes(join.map_change())->to);
  } else {
    worker.known.set_job_id(join.job_id());
    worker.known.set_run(join.run());
    worker.known.set_generation(join.shard_map().generation());
  }
  worker.question.set_incarnation(worker.incarnation);
  worker.question.set_job_id(worker.known.job_id());
  worker.question.set_run(worker.known.run());
  worker.question.set_formation(join.formation());
  worker.question.set_known_generation(worker.known.generation());
}

bool ManyMembers::Ask(Worker& worker) {
  auto reply = core_->Next(worker.question);
  ++questions_;
  Notice();
  SHOAL_CHECK(reply.ok());
  worker.question.clear_finished();
  if (!reply->has_value()) {
    return false;
  }
  if ((*reply)->join_again()) {
    *worker.answer.mutable_join() = Join(worker, worker.known);
    worker.question.set_formation(worker.answer.join().formation());
    return Ask(worker);
  }
  if (worker.answer.has_join()) {  // asked for
    (*reply)->mutable_join()->Swap(worker.answer.mutable_join());
  }
  worker.answer = **std::move(reply);
  return true;
}

void ManyMembers::FinishWork(Worker& worker) const {
  proto::FinishedReport& report = *worker.question.mutable_finished();
  report.set_step(worker.answer.work().step());
  report.set_attempt(worker.answer.work().attempt());
  report.set_busy_seconds(0.5);
  for (const proto::MicrobatchWork& pack : worker.answer.work().microbatches()) {
    *report.add_packs() = FakeSteps::Run(pack);
  }
  for (size_t server = 0; server < servers_.size(); ++server) {
    report.add_get_wait_by_server(0.001);
    report.add_connections()->set_peer(fmt::format("server-{}", server));
    report.mutable_connections()->rbegin()->set_transport("verbs");
  }
}

void ManyMembers::Scale(int servers, double seconds) {
  proto::ScaleRequest request;
  request.set_servers(servers);
  request.set_dry_run(true);
  const auto all = core_->Scale(request);
  SHOAL_CHECK(all.ok());
  request.set_dry_run(false);
  request.set_rate(
      static_cast<int64_t>(static_cast<double>(all->bytes_moved()) / plan::kMostWaves / seconds));
  SHOAL_CHECK(core_->Scale(request).ok());
}

void ManyMembers::ScaleToAll(double seconds) {
  Scale(options_.servers + options_.spares, seconds);
  Work();
}

void ManyMembers::RunStep() {
  clock_.Advance(absl::Seconds(1));
  for (const auto& worker : workers_) {
    LearnPart(*worker);
    FinishWork(*worker);
    worker->answer = {};
    if (worker != workers_.back()) {
      SHOAL_CHECK(!Ask(*worker));
    }
  }
  for (const auto& server : servers_) {
    server->GetReady();
  }
  Work();
}

void ManyMembers::Barrier() {
  Ask(*workers_.back());
  Answer();
  for (const auto& worker : workers_) {
    SHOAL_CHECK(Ask(*worker));
  }
}

proto::ScaleReply ManyMembers::Scaling() {
  const auto reply = core_->Scale({});
  SHOAL_CHECK(reply.ok());
  return *reply;
}

proto::JoinJobReply ManyMembers::JoinKnowing(int worker, const proto::KnownMap& known) {
  return Join(*workers_[static_cast<size_t>(worker)], known);
}

const proto::JoinJobReply& ManyMembers::join(int worker) const {
  return workers_[static_cast<size_t>(worker)]->answer.join();
}

}  // namespace shoal::server::testing
