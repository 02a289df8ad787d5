// A name of this machine for itself.
#pragma once

#include <netdb.h>

#include <string>

namespace shoal {

// "localhost", or where that is not known, as in a root without /etc/hosts, its address.
inline std::string LocalName() {
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0) {
    return "127.0.0.1";
  }
  freeaddrinfo(found);
  return "localhost";
}

}  // namespace shoal
