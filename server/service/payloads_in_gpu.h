// Which clients' slots lie in the server's GPU, or did and may still be open: memory that a client
// has open goes when the client closes it (core/transport/gpu_memory.h), which one that hangs, or
// means harm, does not do. So a client that comes again while it has two, in this life or an
// earlier one, is served on the host. Clients give their names themselves, so all that is kept is
// bounded too: by twice as many as there may be clients that push.
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

  // ResourceExhausted where that client, or all together, have as many as they may.
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
