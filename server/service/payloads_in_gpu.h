// Bounds the clients' slots in the server's GPU, those of earlier connections included: memory is
// freed only when the client closes it (core/transport/gpu_memory.h), which a hanging or hostile
// one does not do. So a client that has two, in this life or an earlier one, is served on the host.
// Clients choose their names, so the total is bounded too: two for each client that may push.
//
// Used from one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/transport/transport.h"

namespace shoal::server {

class PayloadsInGpu {
 public:
  // One that it pushes into, and one of the connection before, on its way to be closed.
  static constexpr int64_t kMost = 2;

  explicit PayloadsInGpu(int64_t clients) : most_(kMost * clients) {}

  // ResourceExhausted if that client, or all together, have as many as they may.
  absl::Status MayHaveMore(const std::string& client) {
    std::erase_if(kept_, [](const Kept& kept) { return kept.region.expired(); });
    if (std::ranges::count(kept_, client, &Kept::client) >= kMost) {
      return ResourceExhausted("it has not closed those of {} earlier connections", kMost);
    }
    if (std::ssize(kept_) >= most_) {
      return ResourceExhausted("clients have {} of them open, two for each that may be there",
                               kept_.size());
    }
    return absl::OkStatus();
  }
  void Add(const std::string& client, const std::shared_ptr<transport::Region>& region) {
    kept_.push_back({.client = client, .region = region});
  }

 private:
  struct Kept {
    std::string client;
    std::weak_ptr<transport::Region> region;
  };
  const int64_t most_;
  std::vector<Kept> kept_;
};

}  // namespace shoal::server
