#include "client/transport_policy.h"

#include <algorithm>

namespace shoal::client {

std::vector<bool> TransportPolicy::LeftOut(absl::Time now) const {
  std::vector<bool> left_out;
  for (const Record& record : transports_) {
    left_out.push_back(record.rests_until > now);
  }
  if (std::ranges::find(left_out, false) == left_out.end()) {
    left_out.assign(left_out.size(), false);
  }
  return left_out;
}

std::vector<size_t> TransportPolicy::OnConnected(size_t transport,
                                                 const std::vector<bool>& left_out,
                                                 const std::vector<size_t>& not_completed,
                                                 absl::Time now) {
  std::vector<size_t> resting;
  for (size_t i = 0; i < transports_.size(); ++i) {
    Record& record = transports_[i];
    record.to_try = record.to_try && left_out[i];
    const bool had_worked = record.connected != absl::InfinitePast();
    if (std::ranges::find(not_completed, i) != not_completed.end() ||
        (i < transport && !left_out[i] && had_worked)) {
      Rest(record, now);
      resting.push_back(i);
    }
  }
  transports_[transport].connected = now;
  return resting;
}

bool TransportPolicy::OnBroken(size_t transport, absl::Time now) {
  Record& record = transports_[transport];
  if (now - record.connected >= options_.lasting) {
    record.breaks = 0;
    record.rests = 0;
  }
  if (++record.breaks < options_.breaks) {
    return false;
  }
  Rest(record, now);
  return transports_.size() > 1;
}

void TransportPolicy::OnNoneConnected() {
  for (Record& record : transports_) {
    record.rests_until = absl::InfinitePast();
    record.to_try = false;
  }
}

bool TransportPolicy::IsTryDue(size_t current, absl::Time now) const {
  return std::any_of(
      transports_.begin(), transports_.begin() + static_cast<ptrdiff_t>(current),
      [&](const Record& record) { return record.to_try && record.rests_until <= now; });
}

void TransportPolicy::Rest(Record& record, absl::Time now) {
  constexpr int kMostDoublings = 20;
  const absl::Duration rest = options_.first_rest * (1 << std::min(record.rests, kMostDoublings));
  record.rests_until = now + std::min(rest, options_.longest_rest);
  record.rests = std::min(record.rests + 1, kMostDoublings);
  record.breaks = 0;
  record.to_try = true;
}

}  // namespace shoal::client
