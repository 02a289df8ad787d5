#include "server/service/meeting.h"

#include <algorithm>
#include <utility>

#include "core/transport/data_layout.h"

namespace shoal::server {

std::vector<Meeting::Ring> Meeting::Begin(int64_t step, int64_t attempt,
                                          std::vector<uint64_t> workers) {
  absl::MutexLock lock(&mutex_);
  tag_ = transport::MeetingTag(step, attempt);
  std::vector<Ring> rings;
  for (const uint64_t worker : workers_) {
    rings.push_back({worker, transport::MeetingDoorbell(tag_, 0)});
  }
  workers_ = std::move(workers);
  come_.assign(workers_.size(), 0);
  over_ = 0;
  return rings;
}

std::vector<Meeting::Ring> Meeting::OnDoorbell(uint64_t incarnation, uint32_t immediate) {
  absl::MutexLock lock(&mutex_);
  const auto found = std::ranges::find(workers_, incarnation);
  if (found == workers_.end() || transport::MeetingTagOf(immediate) != tag_) {
    return {};
  }
  uint32_t& come = come_[static_cast<size_t>(found - workers_.begin())];
  const uint32_t count = transport::MeetingCountOf(immediate);
  if (count <= come) {
    return {{incarnation, transport::MeetingDoorbell(tag_, over_)}};
  }
  come = count;
  const uint32_t over = *std::ranges::min_element(come_);
  if (over == over_) {
    return {};
  }
  over_ = over;
  std::vector<Ring> rings;
  for (const uint64_t worker : workers_) {
    rings.push_back({worker, transport::MeetingDoorbell(tag_, over_)});
  }
  return rings;
}

}  // namespace shoal::server
