#include "core/rpc/server_gpu.h"

#include <cstdint>

#include "core/base/status.h"

namespace shoal::rpc {
namespace {

constexpr size_t kLongestName = 64;
// More than a GPU has, and small enough for sums.
constexpr double kMostBytes = 4e12;

bool IsSound(int64_t bytes, int64_t times = 1) {
  return bytes >= 0 && times >= 0 &&
         static_cast<double>(bytes) * static_cast<double>(times) <= kMostBytes;
}

}  // namespace

absl::Status CheckServerGpu(const proto::ServerGpu& gpu) {
  if (gpu.gpu().size() > kLongestName) {
    return InvalidArgument("a GPU's name of {} bytes, at most {} are allowed", gpu.gpu().size(),
                           kLongestName);
  }
  if (!IsSound(gpu.taken_bytes()) || !IsSound(gpu.client_bytes()) ||
      !IsSound(gpu.client_bytes(), gpu.clients())) {
    return InvalidArgument(
        "a server cannot take {} B of its GPU, and {} B more for each of {} clients",
        gpu.taken_bytes(), gpu.client_bytes(), gpu.clients());
  }
  return absl::OkStatus();
}

}  // namespace shoal::rpc
