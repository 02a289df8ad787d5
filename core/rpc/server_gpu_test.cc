#include "core/rpc/server_gpu.h"

#include <gtest/gtest.h>

#include <limits>

namespace shoal::rpc {
namespace {

bool Passes(const std::string& name, int64_t taken, int64_t of_client, int clients) {
  proto::ServerGpu gpu;
  gpu.set_gpu(name);
  gpu.set_taken_bytes(taken);
  gpu.set_client_bytes(of_client);
  gpu.set_clients(clients);
  return CheckServerGpu(gpu).ok();
}

TEST(CheckServerGpu, TakesWhatServersSay) {
  EXPECT_TRUE(Passes("", 0, 0, 0));
  EXPECT_TRUE(Passes("GPU-01234567-89ab-cdef-0123-456789abcdef", int64_t{80} << 30, 64 << 20, 512));
}

TEST(CheckServerGpu, RefusesWhatNoGpuHas) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int kMany = std::numeric_limits<int>::max();
  EXPECT_FALSE(Passes(std::string(65, 'G'), 1, 1, 1));
  EXPECT_FALSE(Passes("G", -1, 1, 1));
  EXPECT_FALSE(Passes("G", kMost, 1, 1));
  EXPECT_FALSE(Passes("G", 1, -1, 1));
  EXPECT_FALSE(Passes("G", 1, kMost, 1));
  EXPECT_FALSE(Passes("G", 1, 1, -1));
  EXPECT_FALSE(Passes("G", 1, int64_t{1} << 40, kMany)) << "their product";
}

}  // namespace
}  // namespace shoal::rpc
