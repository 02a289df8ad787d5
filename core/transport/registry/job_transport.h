// Creates the transports of a job on this machine from service.transports and service.rdma,
// overridden by flags of the process, since hosts differ. Servers and workers both use it, so they
// fall back by the same rules and log the same messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/transport/options.h"
#include "core/transport/rdma_flags.h"
#include "core/transport/transport.h"

namespace shoal::transport {

VerbsOptions MakeVerbsOptions(const plan::RdmaOptions& job, const RdmaFlags& flags);

// For TransportOptions::gpu_job: true if the job makes its workers compute on GPUs, false if it
// leaves the choice to each worker.
inline bool IsGpuJob(const plan::Job& job) { return job.train.device == plan::DeviceKind::kCuda; }

// If it fails, the caller does without that transport: LogUnavailable, then try the next.
// `registered_bytes`: the least memory that the process will register; ResourceExhausted if verbs
// could not lock that much. `options` hold what does not come from the job; `encrypt` says there
// whether control is encrypted.
absl::StatusOr<std::unique_ptr<Transport>> CreateJobTransport(std::string_view name,
                                                              const plan::ServiceOptions& service,
                                                              const RdmaFlags& flags,
                                                              TransportOptions options,
                                                              int64_t registered_bytes);

// Logs one line: information if the machine just lacks the hardware (NotFound), else a warning.
void LogUnavailable(std::string_view name, const absl::Status& why);

}  // namespace shoal::transport
