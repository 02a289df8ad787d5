// The transports of a job on this machine: service.transports and service.rdma, and what flags of
// the process override, since hosts differ. Servers and workers make theirs here, so that both fall
// back by the same rules and say so in the same words.
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

// TransportOptions::gpu_job: the job says that its workers compute on GPUs. (Where it leaves that
// to each of them, it does not.)
inline bool IsGpuJob(const plan::Job& job) { return job.train.device == plan::DeviceKind::kCuda; }

// A transport that was asked for and cannot be had is the caller's to do without: LogUnavailable
// and take the next. `registered_bytes`: what the process will register at least; ResourceExhausted
// where verbs could not lock that much. `options` hold what is not of the job.
absl::StatusOr<std::unique_ptr<Transport>> CreateJobTransport(std::string_view name,
                                                              const plan::ServiceOptions& service,
                                                              const RdmaFlags& flags,
                                                              TransportOptions options,
                                                              int64_t registered_bytes);

// One line: information where the machine just has no such hardware (NotFound), else a warning.
void LogUnavailable(std::string_view name, const absl::Status& why);

}  // namespace shoal::transport
