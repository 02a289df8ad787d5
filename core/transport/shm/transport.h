// Shared memory: one-sided reads and writes between processes of one machine and one user, at the
// speed of memcpy.
//
// How:
// - Regions are memfds that peers map (region.h).
// - The handshake passes them over a local socket (handshake.h).
// - A post copies in the posting thread (connection.h).
// - Doorbells are rings in shared memory, with an eventfd to wake (control.h).
// - The socket stays open and tells at once when a peer dies (service.h).
//
// GPU memory (TransportOptions::gpu_memory) may be registered: the GPU's copy engines then move
// data directly between it and the peer's region. The peer's memory is pinned for that in pieces,
// when each is first copied. GPU memory may be exposed too: peers open it in their process, and
// copy to and from it. The handshake fails with FailedPrecondition for a peer without that GPU,
// because it uses none or is in a container without it, so that it takes another transport.
//
// Trust: the other process runs as the same user, checked by the kernel, and knows a single-use
// secret. Its memory is hostile all the same: no value in it can make this process touch memory out
// of bounds or hang. What cannot be prevented is that a peer keeps a mapping: "no access after
// Close()" is an agreement between two Shoal processes, which the kernel enforces when the peer
// dies.
//
// Across hosts, network namespaces or users the handshake is refused with FailedPrecondition or
// PermissionDenied, so that callers take tcp.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/transport/options.h"
#include "core/transport/transport.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<Transport>> CreateShmTransport(const TransportOptions& options);

}  // namespace shoal::transport
