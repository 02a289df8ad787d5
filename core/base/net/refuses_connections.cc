#include "core/base/net/refuses_connections.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "core/base/file.h"
#include "core/base/net/address.h"

namespace shoal {
namespace {

constexpr int kPatienceMilliseconds = 200;

bool Refuses(const addrinfo& address) {
  const UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) {
    return false;
  }
  int error = errno;
  if (error == EINPROGRESS) {
    pollfd ready = {.fd = fd.get(), .events = POLLOUT, .revents = 0};
    socklen_t length = sizeof error;
    if (poll(&ready, 1, kPatienceMilliseconds) != 1 ||
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      return false;
    }
  }
  return error == ECONNREFUSED;
}

}  // namespace

bool RefusesConnections(const std::string& address) {
  const std::optional<AddressParts> parts = SplitAddress(address);
  if (!parts.has_value() || parts->host.empty()) {
    return false;
  }
  const addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found) != 0) {
    return false;
  }
  const Addresses addresses(found);
  return Refuses(*addresses);
}

}  // namespace shoal
