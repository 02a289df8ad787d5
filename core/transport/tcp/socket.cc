#include "core/transport/tcp/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port, bool to_listen) {
  if (port < 0 || port > 65535) {
    return InvalidArgument("{} is not a port", port);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return InvalidArgument("cannot resolve host '{}': {}", host, gai_strerror(error));
  }
  return Addresses(found);
}

void SetBuffers(int socket, int bytes) {
  // The kernel may give less.
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

// True if both ends have the same address.
bool SameHost(int socket) {
  sockaddr_storage here = {};
  sockaddr_storage there = {};
  socklen_t here_length = sizeof here;
  socklen_t there_length = sizeof there;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&here), &here_length) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&there), &there_length) != 0 ||
      here.ss_family != there.ss_family) {
    return false;
  }
  if (here.ss_family == AF_INET6) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(&here)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(&there)->sin6_addr,
                       sizeof(in6_addr)) == 0;
  }
  return here.ss_family == AF_INET &&
         reinterpret_cast<const sockaddr_in*>(&here)->sin_addr.s_addr ==
             reinterpret_cast<const sockaddr_in*>(&there)->sin_addr.s_addr;
}

constexpr int kSameHostBufferBytes = 2 << 20;
// A host may have configured another one for its networks, and some (bbr) pace what they send by
// timers, which costs up to a quarter of the loopback's speed. Every kernel has this one and lets
// everybody use it.
constexpr std::string_view kSameHostCongestionControl = "reno";

absl::StatusOr<UniqueFd> NewSocket(const addrinfo& address, int socket_buffer_bytes) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "making a tcp socket");
  }
  if (socket_buffer_bytes > 0) {
    SetBuffers(fd.get(),
               socket_buffer_bytes);  // before connect and listen, which settle the window scale
  }
  return fd;
}

// Waits until the socket is ready for `events`.
absl::Status Await(int socket, short events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - RealClock().Now();
    if (left <= absl::ZeroDuration()) {
      return DeadlineExceeded("no answer in time");
    }
    pollfd poll_fd = {.fd = socket, .events = events, .revents = 0};
    const timespec left_spec = absl::ToTimespec(left);
    if (ppoll(&poll_fd, 1, &left_spec, nullptr) > 0) {
      return absl::OkStatus();
    }
  }
}

absl::StatusOr<UniqueFd> DialAddress(const addrinfo& address, int socket_buffer_bytes,
                                     absl::Time deadline) {
  SHOAL_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address, socket_buffer_bytes));
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) {
    return fd;
  }
  int error = errno;
  if (error == EINPROGRESS) {
    SHOAL_RETURN_IF_ERROR(Await(fd.get(), POLLOUT, deadline));
    socklen_t length = sizeof error;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      error = errno;
    }
  }
  if (error != 0) {
    return Unavailable("{}", std::strerror(error));
  }
  return fd;
}

}  // namespace

absl::StatusOr<TcpListener> ListenTcp(const std::string& host, int port, int socket_buffer_bytes) {
  SHOAL_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, /*to_listen=*/true));
  SHOAL_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(*addresses, socket_buffer_bytes));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound = {};
  socklen_t length = sizeof bound;
  if (bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(fd.get(), 1024) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return ErrnoToStatus(errno, fmt::format("listening on {}:{}", host, port));
  }
  const in_port_t bound_port = bound.ss_family == AF_INET6
                                   ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                   : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port;
  return TcpListener{std::move(fd), ntohs(bound_port)};
}

absl::StatusOr<UniqueFd> DialTcp(const std::string& host, int port, int socket_buffer_bytes,
                                 absl::Time deadline) {
  SHOAL_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port, /*to_listen=*/false));
  absl::Status last = absl::OkStatus();
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    absl::StatusOr<UniqueFd> fd = DialAddress(*address, socket_buffer_bytes, deadline);
    if (fd.ok()) {
      return fd;
    }
    last = fd.status();
  }
  return Annotate(last, fmt::format("dialling {}:{}", host, port));
}

absl::Status TuneTcp(int socket, absl::Duration keep_alive, int socket_buffer_bytes) {
  const int on = 1;
  const int timeout_ms =
      static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(keep_alive), 1, 1 << 30));
  const int idle_s = std::max(1, timeout_ms / 3000);
  const int probes = 3;
  if (setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
      setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) != 0 ||
      setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) != 0 ||
      setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s) != 0 ||
      setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes) != 0 ||
      setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms) != 0) {
    return ErrnoToStatus(errno, "setting up a tcp socket");
  }
  if (SameHost(socket)) {
    // If this fails the connection is slower, but works.
    setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kSameHostCongestionControl.data(),
               kSameHostCongestionControl.size());
    if (socket_buffer_bytes == 0) {
      SetBuffers(socket, kSameHostBufferBytes);
    }
  }
  return absl::OkStatus();
}

absl::Status SendAll(int socket, std::span<const std::byte> bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      SHOAL_RETURN_IF_ERROR(Await(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return ErrnoToStatus(errno, "sending the handshake");
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int socket, std::span<std::byte> bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t received = recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (received > 0) {
      bytes = bytes.subspan(static_cast<size_t>(received));
    } else if (received == 0) {
      return Unavailable("the peer ended the handshake");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      SHOAL_RETURN_IF_ERROR(Await(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return ErrnoToStatus(errno, "receiving the handshake");
    }
  }
  return absl::OkStatus();
}

absl::Status SendFrame(int socket, const TcpFrame& frame, const std::string& payload,
                       absl::Time deadline) {
  std::string bytes(reinterpret_cast<const char*>(&frame), sizeof frame);
  bytes += payload;
  return SendAll(socket, std::as_bytes(std::span(bytes)), deadline);
}

}  // namespace shoal::transport
