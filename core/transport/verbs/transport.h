// RDMA through libibverbs: reads and writes that need no thread of the peer's process, on reliable
// queue pairs of one or several devices. InfiniBand and RoCE, hardware and software (rdma_rxe)
// alike.
//
// There is one queue pair for each connection and rail (device and port). Which rails a process has
// is decided once, when the transport is made (device_choice.h); the accepting side decides which
// of them a connection uses, from what both have. Everything after the handshake is in band
// (wire.h): no other socket exists whose life could differ from the queue pair's.
//
// Threads: the thread that polls an EventQueue moves its connections (queue.h); VerbsService is one
// thread for everything else.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/transport/options.h"
#include "core/transport/transport.h"
#include "core/transport/verbs/topology/topology.h"

namespace shoal::transport {

class VerbsApi;

// Unavailable if there is no usable RDMA device: the message lists the devices and why they are not
// usable.
absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options);
// Uses a fabric other than the machine's, as seen from that place in it.
absl::StatusOr<std::unique_ptr<Transport>> CreateVerbsTransport(const TransportOptions& options,
                                                                std::shared_ptr<VerbsApi> api,
                                                                const ServedLocation& place = {});

}  // namespace shoal::transport
