// RDMA through libibverbs: reads and writes that take no thread of the peer's process, on reliable
// queue pairs of one or several devices. InfiniBand and RoCE, hardware and software (rdma_rxe)
// alike.
//
// One queue pair for each connection and rail (device and port). Which rails a process has is
// decided once, when the transport is made (device_choice.h); which of them a connection uses, by
// the accepting side, from what both have. Everything after the handshake is in band
// (wire.h): there is no other socket whose life could differ from the queue pair's.
//
// Threads: whoever polls an EventQueue moves its connections (queue.h); VerbsService is one
// thread for all else.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/transport/options.h"
#include "core/transport/transport.h"
#include "core/transport/verbs/topology/machine_place.h"

namespace shoal::transport {

class VerbsApi;

// Unavailable if there is no RDMA device that is fit: the message says what there is and why it is
// not.
absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options);
// Over another fabric than the machine's, as from that place in it.
absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options,
                                                                std::shared_ptr<VerbsApi> api,
                                                                const ServedPlace& place = {});

}  // namespace shoal::transport
