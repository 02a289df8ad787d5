// perftest: ib_read_bw, ib_write_bw and their _lat counterparts, client and server on this host, on
// the device, port and GID that our verbs transport takes.
#pragma once

#include <memory>

#include "core/transport/bench/peer.h"

namespace shoal::transport {

// Unavailable where there is no device that is fit.
absl::StatusOr<std::unique_ptr<Peer>> MakePerftest(const PeerOptions& options);

// The figures in the row beneath the one that begins with "#bytes".
absl::StatusOr<double> ParsePerftestBandwidth(const std::string& output);  // bytes a second
absl::StatusOr<double> ParsePerftestLatency(const std::string& output);    // seconds, the median

}  // namespace shoal::transport
