// Addresses as flags and messages have them: HOST:PORT, with brackets around an IPv6 host.
#pragma once

#include <netdb.h>

#include <memory>
#include <optional>
#include <string>

namespace shoal {

// "[::1]" of "[::1]:4000", as it stands. All of what has no port.
std::string HostOf(const std::string& address);

struct AddressParts {
  std::string host;  // "::1"; may be empty
  std::string port;  // unchecked
};
// Nullopt without a port.
std::optional<AddressParts> SplitAddress(const std::string& address);

// Whether it is HOST:PORT with a port from 1 to 65535, or several such with commas.
bool AreAddresses(const std::string& list);

// What getaddrinfo finds.
struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

}  // namespace shoal
