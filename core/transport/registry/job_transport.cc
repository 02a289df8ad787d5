#include "core/transport/registry/job_transport.h"

#include <utility>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/transport/locked_memory.h"
#include "core/transport/registry/registry.h"

namespace shoal::transport {

VerbsOptions MakeVerbsOptions(const plan::RdmaOptions& job, const RdmaFlags& flags) {
  VerbsOptions options;
  options.devices = flags.devices.empty() ? job.devices : flags.devices;
  options.gid_index = flags.gid_index.value_or(static_cast<int>(job.gid_index));
  options.mtu_bytes = static_cast<int>(job.mtu_bytes);
  options.max_rails = static_cast<int>(job.max_rails);
  options.traffic_class = static_cast<uint8_t>(job.traffic_class);
  options.service_level = static_cast<uint8_t>(job.service_level);
  return options;
}

absl::StatusOr<std::unique_ptr<Transport>> CreateJobTransport(std::string_view name,
                                                              const plan::ServiceOptions& service,
                                                              const RdmaFlags& flags,
                                                              TransportOptions options,
                                                              int64_t registered_bytes) {
  SHOAL_ASSIGN_OR_RETURN(options.encrypt, plan::EncryptsTensors(service, options.encrypt));
  if (name == "verbs" && options.encrypt && !service.rdma.trusted_network) {
    return FailedPrecondition(
        "tensors are to be encrypted, and verbs sends them in plain text; where nobody else is on "
        "its network, say service.rdma.trusted_network: true");
  }
  options.verbs = MakeVerbsOptions(service.rdma, flags);
  SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, CreateTransport(name, options));
  if (name == "verbs") {  // the only one whose memory is locked
    SHOAL_RETURN_IF_ERROR(CheckLockedMemory(ReadLockedMemory(), registered_bytes));
  }
  if (name == "tcp") {
    LogInfo("tensors over tcp are {}", options.encrypt ? "encrypted" : "in plain text");
  }
  return transport;
}

void LogUnavailable(std::string_view name, const absl::Status& why) {
  if (absl::IsNotFound(why)) {
    LogInfo("{} is not available here: {}", name, Message(why));
  } else {
    LogWarning("{} is not available here: {}", name, Message(why));
  }
}

}  // namespace shoal::transport
