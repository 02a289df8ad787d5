// TCP: reads and writes between hosts, or where shared memory is refused.
//
// How:
// - Each transport has one listening port, whose thread answers dials (acceptor.h).
// - I/O threads serve the peers' reads straight from exposed regions and receive straight into them
//   (connection.h), so the peer's application takes no part in a read.
// - A thread that waits on a queue meanwhile does the I/O threads' work (sockets.h).
// - Exposed GPU memory passes through pinned host memory (staging.h).
// - frame.h describes the frames, record.h how they are encrypted.
//
// Trust: a dial must prove that it has the single-use secret that the gRPC handshake handed out.
// Every frame is checked before memory is touched; a bad one ends only its own connection, with a
// message that names the peer. Where bytes are not encrypted (TransportOptions::encrypt), use it
// within a trusted network.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/transport/options.h"
#include "core/transport/transport.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(const TransportOptions& options);

}  // namespace shoal::transport
