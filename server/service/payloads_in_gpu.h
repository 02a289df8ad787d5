// Which clients' slots lie in the server's GPU, or did and may still be open: memory that a client
// has open goes when the client closes it (transport/gpu_memory.h), which one that hangs, or means
// harm, does not do. So a client that comes again while it has two is served on the host, and what
// is kept for a client that is connected no more is bounded.
//
// Used from one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace shoal::server {

class PayloadsInGpu {
 public:
  // One that it pushes into, and one of the connection before, on its way to be closed.
  static constexpr int64_t kMost = 2;

  bool MayHaveMore(uint64_t incarnation) {
    std::erase_if(kept_, [](const Kept& kept) { return kept.region.expired(); });
    return std::ranges::count(kept_, incarnation, &Kept::incarnation) < kMost;
  }
  void Add(uint64_t incarnation, const std::shared_ptr<transport::Region>& region) {
    kept_.push_back({.incarnation = incarnation, .region = region});
  }

 private:
  struct Kept {
    uint64_t incarnation = 0;
    std::weak_ptr<transport::Region> region;
  };
  std::vector<Kept> kept_;
};

}  // namespace shoal::server
