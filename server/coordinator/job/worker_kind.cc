#include "server/coordinator/job/worker_kind.h"

#include <algorithm>
#include <map>

#include "core/base/status.h"

namespace shoal::server {

std::string WorkerKind(const Member& worker, const plan::Job& job) {
  if (job.emulate.enabled()) {
    return "";
  }
  const std::string& gpu = worker.facts.gpu();
  const std::string& instructions = worker.facts.instructions();
  const bool by_job = !gpu.empty() && !instructions.empty();  // else by its --device
  const bool on_gpu = !gpu.empty() && (!by_job || job.train.device != plan::DeviceKind::kCpu);
  if (on_gpu) {
    return "GPU " + gpu;
  }
  return instructions.empty() ? "" : "CPU " + instructions;
}

absl::Status CheckWorker(const Member& worker, const plan::Job& job) {
  const std::string kind = WorkerKind(worker, job);
  if (job.lora.dropout > 0 && kind.starts_with("GPU ")) {
    return FailedPrecondition(
        "{} computes on {}, and lora.dropout is not for GPUs yet: leave it out, or compute on CPUs",
        NameOf(worker), kind);
  }
  return absl::OkStatus();
}

void KeepOneKind(const plan::Job& job, std::string kind, std::vector<Member>& workers) {
  if (kind.empty()) {
    std::map<std::string, int> count;
    int most = 0;
    for (const Member& worker : workers) {
      const std::string of_worker = WorkerKind(worker, job);
      most = std::max(most, of_worker.empty() ? 0 : ++count[of_worker]);
    }
    for (const Member& worker : workers) {
      const std::string of_worker = WorkerKind(worker, job);
      if (kind.empty() && !of_worker.empty() && count[of_worker] == most) {
        kind = of_worker;
      }
    }
  }
  std::erase_if(workers, [&](const Member& worker) {
    const std::string of_worker = WorkerKind(worker, job);
    return !of_worker.empty() && of_worker != kind;
  });
}

}  // namespace shoal::server
