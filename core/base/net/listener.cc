#include "core/base/net/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/net/address.h"
#include "core/base/net/descriptors.h"
#include "core/base/status.h"

namespace shoal {
namespace {

constexpr int kBacklog = 1024;
// Until the next try, where there is no descriptor.
constexpr int kPauseMilliseconds = 100;

in_port_t& PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

bool IsWildcardOfIpv4(const sockaddr_storage& address) {
  return address.ss_family == AF_INET &&
         reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
}

bool IsLoopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  }
  const in_addr_t ipv4 = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
  return ipv4 >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
}

// Listens there, and says the port. Not valid: errno says why.
UniqueFd ListenAt(sockaddr_storage& address) {
  UniqueFd fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  const int off = 0;
  socklen_t length = address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (!fd.valid()) {
    return fd;
  }
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // connections inherit it
  if (address.ss_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

UniqueFd ListenAtWildcards(sockaddr_storage& ipv4) {
  sockaddr_storage both = {};
  both.ss_family = AF_INET6;
  PortOf(both) = PortOf(ipv4);
  UniqueFd fd = ListenAt(both);
  if (fd.valid()) {
    PortOf(ipv4) = PortOf(both);
    return fd;
  }
  return ListenAt(ipv4);
}

absl::StatusOr<Addresses> Resolve(const std::string& address) {
  const std::optional<AddressParts> parts = SplitAddress(address);
  if (!parts.has_value()) {
    return InvalidArgument("cannot listen on '{}': write HOST:PORT", address);
  }
  const addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts->host.empty() ? nullptr : parts->host.c_str(),
                                    parts->port.c_str(), &hints, &found);
      error != 0) {
    return InvalidArgument("cannot listen on '{}': {}", address, gai_strerror(error));
  }
  return Addresses(found);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address) {
  SHOAL_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(address));
  std::vector<UniqueFd> sockets;
  in_port_t port = 0;  // in the network's order
  int error = 0;
  bool is_local = true;
  for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    sockaddr_storage place = {};
    std::memcpy(&place, at->ai_addr, at->ai_addrlen);
    PortOf(place) = sockets.empty() ? PortOf(place) : port;
    UniqueFd fd = IsWildcardOfIpv4(place) ? ListenAtWildcards(place) : ListenAt(place);
    if (fd.valid()) {
      port = PortOf(place);
      is_local = is_local && IsLoopback(place);
      sockets.push_back(std::move(fd));
    } else {
      error = errno;
    }
  }
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (sockets.empty() || !stop.valid()) {
    return Unavailable(
        "cannot listen on {}: {}; choose another address or port (0 picks a free one)", address,
        std::strerror(sockets.empty() ? error : errno));
  }
  return std::unique_ptr<Listener>(
      new Listener(std::move(sockets), std::move(stop), ntohs(port), is_local));
}

Listener::Listener(std::vector<UniqueFd> sockets, UniqueFd stop, int port, bool is_local)
    : sockets_(std::move(sockets)), stop_(std::move(stop)), port_(port), is_local_(is_local) {}

Listener::~Listener() { Stop(); }

void Listener::Start(std::function<void(UniqueFd)> take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) {
    thread_.join();
  }
  sockets_.clear();
}

void Listener::Run() {
  std::vector<pollfd> ready = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const UniqueFd& socket : sockets_) {
    ready.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
  }
  bool room = true;
  for (;;) {
    // Without room for a connection those that wait stay ready: only the end is waited for.
    poll(ready.data(), room ? ready.size() : 1, room ? -1 : kPauseMilliseconds);
    if (ready.front().revents != 0) {
      return;
    }
    room = true;
    for (const UniqueFd& socket : sockets_) {
      room = TakeWaiting(socket.get()) && room;
    }
  }
}

bool Listener::TakeWaiting(int socket) {
  constexpr int kMostAtOnce = 64;  // so that the end and other sockets have their turn
  for (int taken = 0; taken < kMostAtOnce; ++taken) {
    UniqueFd connection(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      if (const int files = FirstDescriptorForFiles(); connection.get() < files) {
        take_(std::move(connection));
      } else {
        refusals_.Refused(ResourceExhausted(
            "{} descriptors are in use, and the rest is for files; raise the limit (ulimit -n)",
            files));
      }
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      refusals_.Refused(ErrnoToStatus(errno, "taking it"));
      return false;
    }  // else that one is gone
  }
  return true;
}

}  // namespace shoal
