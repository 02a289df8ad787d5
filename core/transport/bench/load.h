// What a benchmark runs: a load moves blocks of one size between two memories, from one or several
// clients.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/transport/bench/bench.h"

namespace shoal::transport {

// One size, one number of clients.
struct LoadShape {
  int64_t bytes = 0;
  int clients = 1;
  int64_t memory_bytes = 0;  // of each of the two memories, all clients together
  int socket_buffer_bytes = 0;

  // Whole blocks, at least one.
  int64_t client_bytes() const {
    return std::max<int64_t>(1, memory_bytes / clients / bytes) * bytes;
  }
  int64_t blocks() const { return client_bytes() / bytes; }
};

class Load {
 public:
  virtual ~Load() = default;
  // Runs for about `time` with all clients; returns the bytes moved.
  virtual absl::StatusOr<int64_t> Run(absl::Duration time) = 0;
  // That many blocks one after the other, by one client: each is there before the next is asked
  // for. Several, so that looking at the clock is not what is measured.
  virtual absl::Status MoveInTurn(int blocks) = 0;
};

std::unique_ptr<Load> MakeMemcpyLoad(const LoadShape& shape);
absl::StatusOr<std::unique_ptr<Load>> MakeSocketLoad(const LoadShape& shape);

enum class BenchOperation { kGet, kPush };
absl::StatusOr<std::unique_ptr<Load>> MakeTransportLoad(const std::string& transport,
                                                        BenchOperation operation, int64_t in_flight,
                                                        const LoadShape& shape,
                                                        const BenchOptions& options);

}  // namespace shoal::transport
