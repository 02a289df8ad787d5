// Memory of a GPU as a transport exposes it to peers, who open it: it goes when the last of the
// region's references does, which a transport keeps for as long as a peer may have it open.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// Whether it opens memory of that GPU, and so do its peers that say they do.
inline bool ReachesGpu(const Transport& transport, const std::string& gpu) {
  const std::vector<std::string>& gpus = transport.capabilities().opens_gpus;
  return std::ranges::find(gpus, gpu) != gpus.end();
}

// `memory` is an allocation of its own, of `bytes` at least.
inline absl::StatusOr<std::shared_ptr<Region>> ExposeShared(Transport& transport,
                                                            std::shared_ptr<std::byte> memory,
                                                            size_t bytes, Access access) {
  struct Exposed {
    std::shared_ptr<std::byte> memory;
    std::shared_ptr<Region> region;  // goes first
  };
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<Region> region,
                         transport.Register({memory.get(), bytes}, access));
  Region* const raw = region.get();
  return std::shared_ptr<Region>(std::make_shared<Exposed>(std::move(memory), std::move(region)),
                                 raw);
}

}  // namespace shoal::transport
