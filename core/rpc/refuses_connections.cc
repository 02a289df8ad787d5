#include "core/rpc/refuses_connections.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "core/base/file.h"

namespace shoal::rpc {
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
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return false;
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  return Refuses(*addresses);
}

}  // namespace shoal::rpc
