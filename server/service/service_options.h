// Options of a parameter server process, the same for every job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/job/job.h"
#include "core/transport/transport.h"
#include "server/copy/gradient_sender.h"
#include "server/copy/state_link.h"
#include "server/service/gpu_memory.h"

namespace shoal::server {

// Makes the named transport for that job. `registered_bytes` is the least to be registered;
// `gpu_memory` reaches the server's GPU, null without one.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(
    const std::string& name, const plan::Job& job, int64_t registered_bytes,
    std::shared_ptr<transport::GpuMemory> gpu_memory)>;

struct ParameterServiceOptions {
  TransportFactory create_transport;
  GpuOpener open_gpu;  // for service.memory cuda; empty: refuses such a job
  Clock* clock = &RealClock();
  int64_t max_jobs = 1;  // concurrently
  // 0: service.threads_per_server of the job; if that is 0 too, the machine's cores divided by its
  // servers.
  int threads = 0;
  // Connections of a job at a time. Each worker holds one with push_slots slots.
  int64_t max_clients = 1024;
  absl::Duration look_over_interval = absl::Milliseconds(50);
  // Limit for the disk to take a whole shard.
  absl::Duration checkpoint_timeout = absl::Hours(1);
  // Calls the server of that address, for state of partitions that come from there.
  std::function<GiverCalls(const std::string& address)> connect_server;
  // Brings gradients to the server of that address, which backs their partitions up.
  std::function<GradientTaker(const std::string& address)> connect_backup;
  // Told of each call by its name, as metrics have it, when it begins, and with " done" before it
  // is answered: where tests end a server. Empty: nobody is.
  std::function<void(std::string_view point)> reached;
  // Bytes available on this machine.
  std::function<absl::StatusOr<int64_t>()> available_memory;
};

}  // namespace shoal::server
