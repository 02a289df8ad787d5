// TCP: reads and writes between hosts, or where shared memory is refused.
//
// How: one listening port per transport; the acceptor's thread answers dials (tcp_acceptor.h); I/O
// threads serve the peers' reads straight from exposed regions and receive straight into them
// (tcp_connection.h), so the peer's application takes no part in a read; a thread that waits on a
// queue does their work meanwhile (tcp_sockets.h); frames are described in tcp_frame.h. Exposed
// memory of a GPU passes through pinned memory of the host (tcp_staging.h).
//
// Trust: a dial must show the single-use secret that the gRPC handshake handed out. Every frame is
// checked before memory is touched; a bad one ends its connection, with a message that names the
// peer, and no other. The bytes themselves are not encrypted: use it within a trusted network.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "transport/options.h"
#include "transport/transport.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportOptions& options);

}  // namespace shoal::transport
