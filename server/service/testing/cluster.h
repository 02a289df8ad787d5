// Servers in the test's process over one transport, with a small random model: tests in this folder
// drive them in the coordinator's place.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/metrics.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/transport/transport.h"
#include "server/service/parameter_service.h"
#include "server/service/testing/client.h"

namespace shoal::server {

struct TestingServer {
  Metrics metrics;
  std::unique_ptr<ParameterService> service;
};

struct TestingTransport {
  std::string name = "shm";
  // The clients' access to GPUs.
  std::shared_ptr<transport::GpuMemory> client_gpus;
  // Wraps each server's transport, to inject faults; empty: none.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>
      wrap_server;
};

class TestingCluster {
 public:
  // If set, later clusters keep their partitions in these.
  inline static GpuOpener gpus;
  // Of later clusters.
  inline static std::vector<plan::ParameterGroup> groups;

  // `folder` holds the model, created on first use.
  TestingCluster(const std::string& folder, int servers, plan::Accumulate accumulate,
                 int64_t partition_bytes = 1 << 14, const TestingTransport& over = {});

  // Of all servers' machine; none: what it has.
  std::optional<int64_t> available_memory;

  // Incarnations 1 to this are workers of the job.
  static constexpr uint64_t kWorkers = 99;

  // Configures all servers, from `checkpoint` unless it is empty, and admits the job's workers.
  absl::Status Configure(const std::string& checkpoint = "");
  static absl::Status AdmitWorkers(ParameterService& service,
                                   const std::string& job_id = kTestingJob);
  proto::ConfigureRequest ConfigureRequest(int server, const std::string& checkpoint = "") const;

  int servers() const { return static_cast<int>(servers_.size()); }
  ParameterService& service(int server) { return *servers_[static_cast<size_t>(server)]->service; }
  const std::string MetricsText(int server) const {
    return servers_[static_cast<size_t>(server)]->metrics.Text();
  }
  const plan::Job& job() const { return job_; }
  const std::vector<plan::PartitionSpec>& partitions() const { return partitions_; }
  const plan::ShardMap& shard_map() const { return shard_map_; }
  const plan::ModelSpec& spec() const { return spec_; }
  transport::Transport& client_transport() { return *client_transport_; }

  absl::Status BeginAttempt(int64_t step, int64_t attempt);
  // Returns all servers' partitions, without their ids: each at its own.
  absl::StatusOr<proto::PrepareReply> Prepare(int64_t step, int64_t attempt);
  absl::Status Commit(int64_t step, int64_t attempt, double learning_rate = 1e-3,
                      double clip = 1.0);
  // By partition.
  std::vector<uint64_t> Checksums();

  // Of those that train.
  int64_t trained_elements() const {
    int64_t elements = 0;
    for (const plan::PartitionSpec& partition : partitions_) {
      elements += partition.trained();
    }
    return elements;
  }

  // The gradient that worker `worker` pushes as its `sequence`-th of a partition; a function of the
  // arguments.
  std::vector<float> Gradient(uint64_t worker, int64_t step, int64_t sequence, int partition) const;

 private:
  plan::ModelSpec spec_;
  plan::Job job_;
  std::vector<plan::PartitionSpec> partitions_;
  plan::ShardMap shard_map_;
  std::unique_ptr<transport::Transport> client_transport_;
  std::vector<std::unique_ptr<TestingServer>> servers_;
};

}  // namespace shoal::server
