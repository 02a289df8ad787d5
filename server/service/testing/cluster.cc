#include "server/service/testing/cluster.h"

#include <filesystem>

#include "core/base/check.h"
#include "core/base/memory/host_memory.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/job/job_units.h"
#include "core/job/shard_map_message.h"
#include "core/model/huggingface/hf_model.h"
#include "core/transport/registry/registry.h"

namespace shoal::server {

TestingCluster::TestingCluster(const std::string& folder, int servers, plan::Accumulate accumulate,
                               int64_t partition_bytes, const TestingTransport& over)
    : spec_(*plan::NamedShape("tiny")) {
  if (!std::filesystem::exists(folder + "/config.json")) {
    const absl::Status status = formats::InitHfModel(folder, spec_, /*seed=*/1, {});
    SHOAL_CHECK(status.ok());
  }
  job_.model = folder;
  job_.data.train = folder + "/train.jsonl";
  job_.service.accumulate = accumulate;
  job_.service.partition_bytes = partition_bytes;
  job_.service.transports = {over.name};
  job_.service.wire_type_auto = false;
  job_.service.threads_per_server = 2;
  job_.service.memory =
      gpus == nullptr ? plan::PartitionMemory::kHost : plan::PartitionMemory::kCuda;
  job_.train.groups = groups;
  partitions_ = plan::BuildPartitions(plan::JobUnits(spec_, job_.train), partition_bytes);
  shard_map_ = plan::PlaceShards(partitions_, servers, /*generation=*/1);
  client_transport_ = *transport::CreateTransport(over.name, {.gpu_memory = over.client_gpus});
  if (over.client_gpus != nullptr) {
    job_.train.device = plan::DeviceKind::kCuda;
    job_.train.compute = plan::ComputeType::kFp32;
    job_.cluster.local = true;
  }
  for (int i = 0; i < servers; ++i) {
    auto server = std::make_unique<TestingServer>();
    server->service = std::make_unique<ParameterService>(
        ParameterServiceOptions{
            .create_transport = [wrap = over.wrap_server](const std::string& name, const auto&,
                                                          int64_t, auto gpu_memory)
                -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
              SHOAL_ASSIGN_OR_RETURN(auto made,
                                     transport::CreateTransport(name, {.gpu_memory = gpu_memory}));
              return wrap ? wrap(std::move(made)) : std::move(made);
            },
            .open_gpu = gpus,
            .look_over_interval = absl::Milliseconds(5),
            .connect_server = [this](const std::string& address) -> GiverCalls {
              ParameterService& there = service(std::stoi(address));
              return {
                  .read = [&there](const auto& request) { return there.ReadState(request); },
                  .connect = [&there](const auto& request) { return there.ConnectState(request); }};
            },
            .connect_backup = [this](const std::string& address) -> GradientTaker {
              ParameterService& there = service(std::stoi(address));
              return {.take = [&there](const auto& request) { return there.TakeGradient(request); },
                      .cancel = [] {}};
            },
            .available_memory = [this]() -> absl::StatusOr<int64_t> {
              return available_memory.has_value() ? *available_memory : AvailableMemory();
            }},
        &server->metrics);
    servers_.push_back(std::move(server));
  }
}

proto::ConfigureRequest TestingCluster::ConfigureRequest(int server,
                                                         const std::string& checkpoint) const {
  auto request = OfTestingJob<proto::ConfigureRequest>();
  *request.mutable_job() = plan::ToMessage(job_);
  request.set_server_index(server);
  request.set_servers(servers());
  request.set_checkpoint(checkpoint);
  *request.mutable_shard_map() = plan::ToMessage(shard_map_);
  return request;
}

absl::Status TestingCluster::Configure(const std::string& checkpoint) {
  for (int i = 0; i < servers(); ++i) {
    SHOAL_RETURN_IF_ERROR(service(i).Configure(ConfigureRequest(i, checkpoint)).status());
    SHOAL_RETURN_IF_ERROR(AdmitWorkers(service(i)));
  }
  return absl::OkStatus();
}

absl::Status TestingCluster::AdmitWorkers(ParameterService& service, const std::string& job_id) {
  proto::AdmitClientsRequest request;
  request.set_job_id(job_id);
  for (uint64_t worker = 1; worker <= kWorkers; ++worker) {
    request.add_incarnation(worker);
  }
  return service.AdmitClients(request).status();
}

absl::Status TestingCluster::BeginAttempt(int64_t step, int64_t attempt) {
  auto request = OfTestingJob<proto::BeginAttemptRequest>();
  request.set_step(step);
  request.set_attempt(attempt);
  request.set_generation(shard_map_.generation);
  for (int i = 0; i < servers(); ++i) {
    SHOAL_RETURN_IF_ERROR(service(i).BeginAttempt(request).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<proto::PrepareReply> TestingCluster::Prepare(int64_t step, int64_t attempt) {
  auto request = OfTestingJob<proto::PrepareRequest>();
  request.set_step(step);
  request.set_attempt(attempt);
  const auto count = static_cast<int>(partitions_.size());
  proto::PrepareReply all;
  all.mutable_sums_of_squares()->Resize(count, 0);
  all.mutable_non_finite()->Resize(count, 0);
  all.mutable_pushes()->Resize(count, 0);
  for (int i = 0; i < servers(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const proto::PrepareReply reply, service(i).Prepare(request));
    for (int i = 0; i < reply.partitions_size(); ++i) {
      all.set_sums_of_squares(reply.partitions(i), reply.sums_of_squares(i));
      all.set_non_finite(reply.partitions(i), reply.non_finite(i));
      all.set_pushes(reply.partitions(i), reply.pushes(i));
    }
  }
  return all;
}

absl::Status TestingCluster::Commit(int64_t step, int64_t attempt, double learning_rate,
                                    double clip) {
  auto request = OfTestingJob<proto::CommitRequest>();
  request.set_step(step);
  request.set_attempt(attempt);
  request.set_learning_rate(learning_rate);
  request.set_clip_coefficient(clip);
  for (int i = 0; i < servers(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const proto::CommitReply reply, service(i).Commit(request));
    if (reply.version() != step) {
      return Internal("server {} published {}, not {}", i, reply.version(), step);
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> TestingCluster::Checksums() {
  std::vector<uint64_t> hashes(partitions_.size());
  for (int i = 0; i < servers(); ++i) {
    const auto reply = service(i).GetChecksums(OfTestingJob<proto::GetChecksumsRequest>());
    SHOAL_CHECK(reply.ok());
    for (const proto::PartitionChecksum& partition : reply->partitions()) {
      hashes[static_cast<size_t>(partition.partition())] = partition.hash();
    }
  }
  return hashes;
}

std::vector<float> TestingCluster::Gradient(uint64_t worker, int64_t step, int64_t sequence,
                                            int partition) const {
  const plan::PartitionSpec& spec = partitions_[static_cast<size_t>(partition)];
  // By element of the unit, so independent of how units are cut.
  std::vector<float> gradient(static_cast<size_t>(spec.count));
  const auto key =
      worker * 1000003 + static_cast<uint64_t>(step) * 1009 + static_cast<uint64_t>(sequence);
  for (int64_t i = 0; i < spec.count; ++i) {
    const uint64_t element =
        static_cast<uint64_t>(spec.unit) << 40 | static_cast<uint64_t>(spec.offset + i);
    uint64_t bits = (key * 0x9E3779B97F4A7C15u) ^ (element * 0xD6E8FEB86659FD93u);
    bits = (bits ^ (bits >> 32)) * 0xD6E8FEB86659FD93u;
    gradient[static_cast<size_t>(i)] =
        static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23)) * 0x1p-27f;
  }
  return gradient;
}

}  // namespace shoal::server
