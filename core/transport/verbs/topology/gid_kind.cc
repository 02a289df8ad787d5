#include "core/transport/verbs/topology/gid_kind.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>

namespace shoal::transport {
namespace {

constexpr Gid kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr Gid kIpv6Loopback = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

GidKind KindOfIpv4(uint8_t first, uint8_t second) {
  if (first == 127) return GidKind::kLoopback;
  if (first == 169 && second == 254) return GidKind::kLinkLocal;
  return first == 0 || first >= 224 ? GidKind::kNone : GidKind::kIpv4;
}

}  // namespace

bool IsIpv4(const Gid& gid) {
  return std::equal(gid.begin(), gid.begin() + 12, kIpv4Prefix.begin());
}

GidKind KindOf(const Gid& gid) {
  if (IsIpv4(gid)) {
    return KindOfIpv4(gid[12], gid[13]);
  }
  if (gid == Gid{} || gid[0] == 0xff) return GidKind::kNone;
  if (gid == kIpv6Loopback) return GidKind::kLoopback;
  if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80) return GidKind::kLinkLocal;
  return (gid[0] & 0xfe) == 0xfc ? GidKind::kUniqueLocalIpv6 : GidKind::kGlobalIpv6;
}

int CommonPrefixBits(const Gid& a, const Gid& b) {
  int bits = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto differing = static_cast<uint8_t>(a[i] ^ b[i]);
    bits += std::countl_zero(differing);
    if (differing != 0) {
      break;
    }
  }
  return bits;
}

std::string FormatGid(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IsIpv4(gid)) {
    inet_ntop(AF_INET, gid.data() + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  }
  return text;
}

}  // namespace shoal::transport
