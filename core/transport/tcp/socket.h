// TCP sockets: names to addresses, listening, dialling with a deadline, the options Shoal sets.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/file.h"
#include "core/transport/tcp/frame.h"

namespace shoal::transport {

struct TcpListener {
  UniqueFd socket;  // nonblocking
  int port = 0;     // the port bound
};
// Port 0 picks a free one.
absl::StatusOr<TcpListener> ListenTcp(const std::string& host, int port, int socket_buffer_bytes);

// Returns a connected nonblocking socket. Tries all addresses of the name until the deadline.
absl::StatusOr<UniqueFd> DialTcp(const std::string& host, int port, int socket_buffer_bytes,
                                 absl::Time deadline);

// For a connected socket: disables delays for small frames; makes the kernel give up on
// unacknowledged data, and probe an idle peer, within `keep_alive`. For a peer on this host: no
// pacing, and suitable buffer sizes unless `socket_buffer_bytes` is set.
absl::Status TuneTcp(int socket, absl::Duration keep_alive, int socket_buffer_bytes);

// Sends all bytes, or fails at the deadline. Only for the handshake.
absl::Status SendAll(int socket, std::span<const std::byte> bytes, absl::Time deadline);
absl::Status ReceiveAll(int socket, std::span<std::byte> bytes, absl::Time deadline);
absl::Status SendFrame(int socket, const TcpFrame& frame, const std::string& payload,
                       absl::Time deadline);

}  // namespace shoal::transport
