// TCP: reads and writes between hosts, or where shared memory is refused.
//
// How: one listening port per transport; the acceptor's thread answers dials (acceptor.h); I/O
// threads serve the peers' reads straight from exposed regions and receive straight into them
// (connection.h), so the peer's application takes no part in a read; a thread that waits on a
// queue does their work meanwhile (sockets.h); frames are described in frame.h. Exposed
// memory of a GPU passes through pinned memory of the host (staging.h).
//
// Trust: a dial must show the single-use secret that the gRPC handshake handed out. Every frame is
// checked before memory is touched; a bad one ends its connection, with a message that names the
// peer, and no other. The bytes themselves are not encrypted: use it within a trusted network.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/transport/options.h"
#include "core/transport/transport.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportOptions& options);

}  // namespace shoal::transport
