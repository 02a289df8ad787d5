// GPU memory that a transport exposes and peers open. Freed with the last reference to the region;
// a transport holds one as long as a peer may have the memory open.
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

// Whether this transport opens memory of that GPU if a peer exposes it.
inline bool ReachesGpu(const Transport& transport, const std::string& gpu) {
  const std::vector<std::string>& gpus = transport.capabilities().opens_gpus;
  return std::ranges::find(gpus, gpu) != gpus.end();
}

// `memory` is a separate allocation of at least `bytes`.
inline absl::StatusOr<std::shared_ptr<Region>> ExposeShared(Transport& transport,
                                                            std::shared_ptr<std::byte> memory,
                                                            size_t bytes, Access access) {
  struct Exposed {
    std::shared_ptr<std::byte> memory;
    std::shared_ptr<Region> region;  // destroyed first
  };
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<Region> region,
                         transport.Register({memory.get(), bytes}, access));
  Region* const raw = region.get();
  return std::shared_ptr<Region>(
      std::make_shared<Exposed>(Exposed{std::move(memory), std::move(region)}), raw);
}

}  // namespace shoal::transport
