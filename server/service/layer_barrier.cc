#include "server/service/layer_barrier.h"

#include <algorithm>
#include <utility>

#include "core/transport/data_layout.h"

namespace shoal::server {

std::vector<LayerBarrier::Ring> LayerBarrier::Begin(int64_t step, int64_t attempt,
                                                    std::vector<uint64_t> workers) {
  absl::MutexLock lock(&mutex_);
  tag_ = transport::BarrierTag(step, attempt);
  std::vector<Ring> rings;
  for (const uint64_t worker : workers_) {
    rings.push_back({worker, transport::BarrierDoorbell(tag_, 0)});
  }
  workers_ = std::move(workers);
  arrived_.assign(workers_.size(), 0);
  over_ = 0;
  return rings;
}

std::vector<LayerBarrier::Ring> LayerBarrier::OnDoorbell(uint64_t incarnation, uint32_t immediate) {
  absl::MutexLock lock(&mutex_);
  const auto found = std::ranges::find(workers_, incarnation);
  if (found == workers_.end() || transport::BarrierTagOf(immediate) != tag_) {
    return {};
  }
  uint32_t& come = arrived_[static_cast<size_t>(found - workers_.begin())];
  const uint32_t count = transport::BarrierCountOf(immediate);
  if (count <= come) {
    return {{incarnation, transport::BarrierDoorbell(tag_, over_)}};
  }
  come = count;
  const uint32_t over = *std::ranges::min_element(arrived_);
  if (over == over_) {
    return {};
  }
  over_ = over;
  std::vector<Ring> rings;
  for (const uint64_t worker : workers_) {
    rings.push_back({worker, transport::BarrierDoorbell(tag_, over_)});
  }
  return rings;
}

}  // namespace shoal::server
