#include "cli/plan/kubernetes_patch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/base/bytes.h"
#include "fmt/format.h"

namespace shoal::cli {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
// Room beside what is planned: heap, sockets, files that are being written. In whole 64 MiB.
constexpr double kRoom = 1.25;
constexpr int64_t kMemoryUnit = 64 * kMebibyte;
// A checkpoint is assumed to be written at so many bytes a second by each server.
constexpr double kDiskBytesPerSecond = 100e6;
// For all but a checkpoint and a pack: the step at hand, leaving, a slow host.
constexpr int64_t kGraceSeconds = 35;

int64_t LimitOf(int64_t bytes) {
  return RoundUp(static_cast<int64_t>(static_cast<double>(bytes) * kRoom), kMemoryUnit) / kMebibyte;
}

// What one server writes of a checkpoint: weights in fp32 and moments, wherever it holds them.
int64_t CheckpointBytes(const plan::ServerMemory& server) {
  return server.master + server.moments + server.gpu.master + server.gpu.moments;
}

struct Workload {
  std::string_view kind;
  std::string_view name;
  std::string_view container;
  int64_t replicas = 0;
  int64_t memory = 0;  // MiB; 0: as it is
  bool gpu = false;
  int64_t grace_seconds = 0;
};

std::string PatchOf(const Workload& workload) {
  std::string text = fmt::format(
      "---\n"
      "apiVersion: apps/v1\n"
      "kind: {}\n"
      "metadata: {{name: {}}}\n"
      "spec:\n",
      workload.kind, workload.name);
  if (workload.replicas > 0) {
    text += fmt::format("  replicas: {}\n", workload.replicas);
  }
  text += fmt::format(
      "  template:\n"
      "    spec:\n"
      "      terminationGracePeriodSeconds: {}\n",
      workload.grace_seconds);
  if (workload.memory > 0) {
    text += fmt::format(
        "      containers:\n"
        "        - name: {0}\n"
        "          resources:\n"
        "            requests: {{memory: {1}Mi}}\n"
        "            limits: {{memory: {1}Mi{2}}}\n",
        workload.container, workload.memory, workload.gpu ? ", nvidia.com/gpu: 1" : "");
  }
  return text;
}

}  // namespace

std::string KubernetesPatch(const std::string& job_file, const plan::Job& job,
                            const plan::MemoryPlan& memory) {
  int64_t server_bytes = 0;
  int64_t checkpoint_bytes = 0;
  for (const plan::ServerMemory& server : memory.servers) {
    server_bytes = std::max(server_bytes, server.total());
    checkpoint_bytes = std::max(checkpoint_bytes, CheckpointBytes(server));
  }
  int64_t worker_bytes = 0;
  for (const plan::WorkerMemory& stage : memory.stages) {
    worker_bytes = std::max(worker_bytes, stage.total());
  }
  const auto checkpoint_seconds =
      static_cast<int64_t>(std::ceil(static_cast<double>(checkpoint_bytes) / kDiskBytesPerSecond));
  const auto pack_seconds = static_cast<int64_t>(std::ceil(job.cluster.grace_seconds));
  const int64_t servers = std::ssize(memory.servers);
  return fmt::format(
             "# shoal plan {} --kubernetes: name this file under `patches` of an overlay.\n"
             "# Memory: the fullest process of each kind ({} of a server, {} of a worker) and a "
             "quarter more.\n"
             "# Grace: a checkpoint of {} a server at 100 MB/s, a worker's cluster.grace_seconds; "
             "{} s more.\n",
             job_file, FormatBytes(server_bytes), FormatBytes(worker_bytes),
             FormatBytes(checkpoint_bytes), kGraceSeconds) +
         PatchOf({.kind = "StatefulSet",
                  .name = "shoal-coordinator",
                  .container = "coordinator",
                  .grace_seconds = kGraceSeconds + checkpoint_seconds}) +
         PatchOf({.kind = "StatefulSet",
                  .name = "shoal-server",
                  .container = "server",
                  .replicas = servers,
                  .memory = LimitOf(server_bytes),
                  .gpu = job.service.memory == plan::PartitionMemory::kCuda,
                  .grace_seconds = kGraceSeconds + checkpoint_seconds}) +
         PatchOf({.kind = "Deployment",
                  .name = "shoal-worker",
                  .container = "worker",
                  .replicas = job.cluster.workers,
                  .memory = LimitOf(worker_bytes),
                  .gpu = job.train.device == plan::DeviceKind::kCuda,
                  .grace_seconds = kGraceSeconds + pack_seconds});
}

}  // namespace shoal::cli
