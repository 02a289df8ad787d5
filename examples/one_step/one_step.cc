// A training step from weights to commit, in one process and one file: a parameter server, a client
// of it, and a worker that computes (RunStep). main's thread is coordinator and worker in turn; the
// programs put gRPC between them. docs/a-step.md follows the same calls through the code.
//
// It trains a tiny random model on one sequence for two steps; the loss must go down.
#include <cstdio>
#include <filesystem>

#include "client/parameter_client.h"
#include "core/base/memory/host_memory.h"
#include "core/base/metrics.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/job/job.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/schedule/stage_units.h"
#include "core/transport/registry/registry.h"
#include "fmt/format.h"
#include "server/service/parameter_service.h"
#include "worker/exchange/service_sink.h"
#include "worker/exchange/service_source.h"
#include "worker/model/microbatch_model.h"

namespace shoal {
namespace {

constexpr int64_t kGeneration = 1;  // of the shard map
constexpr uint64_t kWorker = 1;     // its incarnation
constexpr const char* kJobId = "job-1";

// The way from the client to the server's one call for data connections: here a function call.
class DirectServerClient final : public client::ServerClient {
 public:
  explicit DirectServerClient(server::ParameterService* service) : service_(service) {}
  absl::StatusOr<proto::ConnectReply> Connect(int /*server*/, const proto::ConnectRequest& request,
                                              absl::Duration /*timeout*/) override {
    return service_->Connect(request);
  }
  void Cancel() override {}

 private:
  server::ParameterService* const service_;
};

struct Parts {
  server::ParameterService& service;
  client::ParameterClient& client;
  worker::MicrobatchModel& model;
  worker::StepWeights& source;  // of weights
  worker::StepGradients& sink;  // of gradients
};

template <typename Request>
Request Of(int64_t step) {
  Request request;
  request.set_job_id(kJobId);
  request.set_step(step);
  request.set_attempt(1);
  return request;
}

// One training step; the loss of the weights that it begins with.
absl::StatusOr<double> RunStep(int64_t step, const worker::PackedBatch& batch, const Parts& parts) {
  // The coordinator opens an attempt at the step; its servers take pushes from here on.
  auto begin = Of<proto::BeginAttemptRequest>(step);
  begin.set_generation(kGeneration);
  SHOAL_RETURN_IF_ERROR(parts.service.BeginAttempt(begin).status());

  // The worker: for each unit get and forward, then get, backward and push. The loss is divided by
  // the targets of the whole minibatch, so that gradients of all workers just add up.
  SHOAL_RETURN_IF_ERROR(parts.client.BeginStep(step, /*attempt=*/1, kGeneration));
  parts.source.BeginStep(plan::UseOrder(parts.model.spec()));
  parts.sink.BeginStep({.microbatches = 1, .packs = 1});
  parts.sink.AtPack(0);
  const double loss_scale = 1.0 / static_cast<double>(batch.target_count());
  SHOAL_ASSIGN_OR_RETURN(const worker::MicrobatchResult result,
                         parts.model.Run(batch, loss_scale, parts.source, parts.sink));
  SHOAL_RETURN_IF_ERROR(parts.sink.Flush());
  SHOAL_ASSIGN_OR_RETURN(const auto pushes, parts.client.Finish(absl::Seconds(10)));
  SHOAL_RETURN_IF_ERROR(parts.source.EndStep());
  SHOAL_RETURN_IF_ERROR(parts.sink.EndStep());

  // Prepare: the server seals the sums and says what it took, which must be what the worker pushed.
  SHOAL_ASSIGN_OR_RETURN(const auto sealed, parts.service.Prepare(Of<proto::PrepareRequest>(step)));
  for (int i = 0; i < sealed.partitions_size(); ++i) {
    if (sealed.pushes(i) != 1) {
      return Internal("the server took {} pushes of partition {}, and the pack makes one",
                      sealed.pushes(i), sealed.partitions(i));
    }
  }

  // Commit: the optimizer runs, and the next version is published.
  auto commit = Of<proto::CommitRequest>(step);
  commit.set_learning_rate(1e-2);
  commit.set_clip_coefficient(1.0);
  SHOAL_ASSIGN_OR_RETURN(const auto committed, parts.service.Commit(commit));

  // Whoever wants weights of that version gets them from now on.
  SHOAL_RETURN_IF_ERROR(parts.client.BeginRead(committed.version()));
  SHOAL_ASSIGN_OR_RETURN(const auto view, parts.client.Get(0));
  fmt::print("step {}: loss {:.4f}, {} pushes; version {} begins with {:.6f}\n", step,
             result.loss_sum * loss_scale, pushes[0], committed.version(),
             static_cast<const float*>(view.data)[0]);
  parts.client.Release(0);
  return result.loss_sum * loss_scale;
}

absl::Status Train(const std::string& folder, const std::string& transport) {
  // The job: a model on disk, cut into units (what is got and pushed together) and partitions (what
  // servers hold), all of them at one server.
  const plan::ModelSpec spec = *plan::NamedShape("tiny");
  SHOAL_RETURN_IF_ERROR(formats::InitHfModel(folder, spec, /*seed=*/1, {}));
  plan::Job job;
  job.model = folder;
  job.data.train = folder + "/train.jsonl";  // a job names one; it is not read here
  job.service.transports = {transport};
  job.service.threads_per_server = 1;
  job.service.wire_type_auto = false;
  const std::vector<plan::UnitSpec> units = plan::BuildUnits(spec);
  const auto partitions = plan::BuildPartitions(units, job.service.partition_bytes);
  const plan::ShardMap map = plan::PlaceShards(partitions, /*servers=*/1, kGeneration);

  // The server reads its partitions and publishes them as version 0.
  Metrics metrics;
  server::ParameterService service(
      {.create_transport = [](const std::string& name, const auto&, int64_t,
                              auto) { return transport::CreateTransport(name, {}); },
       .available_memory = AvailableMemory},
      &metrics);
  proto::ConfigureRequest configure;
  configure.set_job_id(kJobId);
  *configure.mutable_job() = plan::ToMessage(job);
  configure.set_servers(1);
  configure.mutable_shard_map()->set_generation(kGeneration);
  for (size_t i = 0; i < partitions.size(); ++i) {
    configure.mutable_shard_map()->add_servers(0);
  }
  SHOAL_RETURN_IF_ERROR(service.Configure(configure).status());
  proto::AdmitClientsRequest admit;
  admit.set_job_id(kJobId);
  admit.add_incarnation(kWorker);
  SHOAL_RETURN_IF_ERROR(service.AdmitClients(admit).status());

  // The client connects to it; the worker computes on the CPU, with weights from the client.
  DirectServerClient connector(&service);
  SHOAL_ASSIGN_OR_RETURN(const auto data_path, transport::CreateTransport(transport, {}));
  SHOAL_ASSIGN_OR_RETURN(
      const auto client,
      client::ParameterClient::Create({.job_id = kJobId, .incarnation = kWorker}, units, partitions,
                                      map, /*servers=*/1, &connector, {data_path.get()}));
  SHOAL_ASSIGN_OR_RETURN(auto transformer, worker::Transformer::Create(
                                               spec, DType::kF32, worker::MakeCpuComputeDevice(1)));
  const auto model = worker::MakeTransformerModel(std::move(transformer));
  TimeKindClock phases(RealClock());
  worker::LayerBarriers barriers(/*on=*/false, client.get(), &phases);
  worker::ServiceSource source({.uses = {.units = static_cast<int64_t>(units.size())}},
                               client.get(), &barriers, &phases);
  const plan::UnitRange all = plan::AllUnits(spec);
  const worker::PushRule::Options rule{.contributions = plan::StageContributions(spec, {&all, 1}),
                                       .keys_per_pack = std::vector<int>(units.size(), 1)};
  SHOAL_ASSIGN_OR_RETURN(
      const auto sink,
      worker::ServiceSink::Create({.rule = rule}, units, client.get(), &barriers, &phases));
  const Parts parts{service, *client, *model, source, *sink};

  worker::PackedBatch batch;
  batch.AppendNextToken(std::vector<int32_t>{3, 1, 4, 1, 5, 9, 2, 6});
  SHOAL_ASSIGN_OR_RETURN(const double first, RunStep(1, batch, parts));
  SHOAL_ASSIGN_OR_RETURN(const double second, RunStep(2, batch, parts));
  return second < first ? absl::OkStatus() : Internal("the loss did not go down");
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  const std::string folder =
      std::filesystem::temp_directory_path() / ("one-step-" + shoal::SecureToken());
  const absl::Status status = shoal::Train(folder, argc > 1 ? argv[1] : "shm");
  std::filesystem::remove_all(folder);
  if (!status.ok()) {
    fmt::print(stderr, "{}\n", shoal::Message(status));
  }
  return status.ok() ? 0 : 1;
}
