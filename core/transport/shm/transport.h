// Shared memory: one-sided reads and writes between processes of one machine and one user, at the
// speed of memcpy.
//
// How: regions are memfds that peers map (region.h); the handshake passes them over a local
// socket (handshake.h); a post copies in the posting thread (connection.h); doorbells are
// rings in shared memory beside an eventfd (control.h); the kept-open socket tells at once when
// a peer dies (service.h).
//
// Memory of a GPU (TransportOptions::gpu_memory) may be registered: what is read into it or written
// from it goes between it and the peer's region by the GPU's copy engines, with nothing in between.
// The peer's memory is pinned for that in pieces, as they are first copied. Memory of a GPU may be
// exposed too: peers open it in their process, and their copies go to and from it. A peer without
// that GPU, because it uses none or is in a container without it, gets FailedPrecondition from its
// handshake, so that it takes another transport.
//
// Trust: the other process runs as the same user, checked by the kernel, and knows a single-use
// secret. Its memory is hostile all the same: no value in it can make this process touch memory out
// of bounds or hang. What a peer cannot be kept from is holding on to a mapping: "no access after
// Close()" is by agreement between two Shoal processes, and is enforced by the kernel when the peer
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
