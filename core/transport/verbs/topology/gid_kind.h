// What kind of address a GID holds, in order of preference.
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

// Whether it is used without being named by index.
inline bool IsUsable(GidKind kind) { return kind <= GidKind::kLoopback; }

// Returns the number of equal leading bits.
int CommonPrefixBits(const Gid& a, const Gid& b);

}  // namespace shoal::transport
