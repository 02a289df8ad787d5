#include "core/transport/bench/peer.h"

#include "core/base/status.h"
#include "core/transport/bench/message_peers.h"
#include "core/transport/bench/perftest.h"

namespace shoal::transport {
namespace {

struct Entry {
  std::string_view name;
  absl::StatusOr<std::unique_ptr<Peer>> (*make)(const PeerOptions&);
};
constexpr Entry kPeers[] = {{"perftest", MakePerftest}, {"ucx", MakeUcx}, {"openmpi", MakeOpenMpi}};

}  // namespace

std::vector<std::string> PeerNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kPeers) {
    names.emplace_back(entry.name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<Peer>> MakePeer(std::string_view name, const PeerOptions& options) {
  for (const Entry& entry : kPeers) {
    if (entry.name == name) {
      return entry.make(options);
    }
  }
  return InvalidArgument("'{}' is not a peer to compare with; known are {}", name,
                         fmt::join(PeerNames(), ", "));
}

}  // namespace shoal::transport
