// UCX and Open MPI over shared memory and tcp: both through small programs of ours (bench/ucx,
// bench/open_mpi) that walk through memory as our own benchmark does, since the benchmarks that
// come with them send one buffer again and again.
#pragma once

#include <memory>

#include "core/transport/bench/peer.h"

namespace shoal::transport {

absl::StatusOr<std::unique_ptr<Peer>> MakeUcx(const PeerOptions& options);
absl::StatusOr<std::unique_ptr<Peer>> MakeOpenMpi(const PeerOptions& options);

// The best of each kind in the line of JSON that the programs print.
absl::StatusOr<PeerFigures> ParsePeerJson(const std::string& output);

}  // namespace shoal::transport
