#include "core/base/net/address.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

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

bool AreAddresses(const std::string& list) {
  const std::vector<std::string> addresses = absl::StrSplit(list, ',');
  return std::ranges::all_of(addresses, [](const std::string& address) {
    const size_t colon = address.rfind(':');
    uint32_t port = 0;
    return colon != std::string::npos && colon > 0 &&
           address.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
           absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 && port <= 65535;
  });
}

}  // namespace shoal
