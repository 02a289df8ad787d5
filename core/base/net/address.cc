#include "core/base/net/address.h"

namespace shoal {

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::optional<AddressParts> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return std::nullopt;
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return AddressParts{.host = std::move(host), .port = address.substr(colon + 1)};
}

}  // namespace shoal
