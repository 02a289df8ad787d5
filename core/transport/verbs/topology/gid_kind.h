// What kind of address a GID holds. The order is that of preference.
#pragma once

#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

enum class GidKind {
  kIpv4,
  kGlobalIpv6,
  kUniqueLocalIpv6,
  kLoopback,   // of either family
  kLinkLocal,  // of either family
  kNone,       // unspecified, multicast, broadcast: nobody's address
};

GidKind KindOf(const Gid& gid);
bool IsIpv4(const Gid& gid);

// Taken without being named by index.
inline bool IsUsable(GidKind kind) { return kind <= GidKind::kLoopback; }

// Leading bits that are alike.
int CommonPrefixBits(const Gid& a, const Gid& b);

}  // namespace shoal::transport
