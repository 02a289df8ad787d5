#include "core/transport/verbs/testing/fake_faults.h"

#include <utility>

namespace shoal::transport {
namespace {

// Returns what was set for this count, and increments the count.
template <typename Value>
std::optional<Value> Take(std::map<int64_t, Value>& set, int64_t& count) {
  const auto it = set.find(count++);
  if (it == set.end()) {
    return std::nullopt;
  }
  const Value value = it->second;
  set.erase(it);
  return value;
}

}  // namespace

void FakeFaults::SetRandom(const RandomFaults& chances) {
  absl::MutexLock lock(&mutex_);
  chances_ = chances;
}

void FakeFaults::FailRequest(int64_t after, ibv_wc_status status) {
  absl::MutexLock lock(&mutex_);
  failing_requests_[requests_ + after] = status;
}

void FakeFaults::FailPost(int64_t after, int error) {
  absl::MutexLock lock(&mutex_);
  failing_posts_[posts_ + after] = error;
}

void FakeFaults::FailCall(FakeCall call, int64_t after, int error) {
  absl::MutexLock lock(&mutex_);
  failing_calls_[call][calls_[call] + after] = error;
}

void FakeFaults::LoseEvents(int64_t count) {
  absl::MutexLock lock(&mutex_);
  lost_events_ = count;
}

void FakeFaults::LoseReceives(int64_t count) {
  absl::MutexLock lock(&mutex_);
  lost_receives_ = count;
}

bool FakeFaults::Chance(double chance) { return chance > 0 && random_.Uniform() < chance; }

absl::Duration FakeFaults::SomeMilliseconds() {
  return absl::Microseconds(random_.Between(100, 10'000));
}

FakeFaults::RequestFault FakeFaults::OnRequest() {
  absl::MutexLock lock(&mutex_);
  RequestFault fault;
  if (const auto status = Take(failing_requests_, requests_)) {
    fault.status = *status;
  } else if (Chance(chances_.request)) {
    constexpr ibv_wc_status kStatuses[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_OP_ERR,
                                           IBV_WC_LOC_QP_OP_ERR, IBV_WC_GENERAL_ERR};
    fault.status = kStatuses[random_.Below(std::size(kStatuses))];
  }
  fault.executed = fault.status != IBV_WC_SUCCESS && random_.Below(2) == 0;
  return fault;
}

int FakeFaults::OnPost() {
  absl::MutexLock lock(&mutex_);
  if (const auto error = Take(failing_posts_, posts_)) {
    return *error;
  }
  return Chance(chances_.post) ? ENOMEM : 0;
}

int FakeFaults::OnCall(FakeCall call) {
  absl::MutexLock lock(&mutex_);
  return Take(failing_calls_[call], calls_[call]).value_or(0);
}

absl::Duration FakeFaults::OnEvent() {
  absl::MutexLock lock(&mutex_);
  if (lost_events_ > 0) {
    --lost_events_;
    return absl::InfiniteDuration();
  }
  if (Chance(chances_.lost_event)) {
    return absl::InfiniteDuration();
  }
  return Chance(chances_.late_event) ? SomeMilliseconds() : absl::ZeroDuration();
}

absl::Duration FakeFaults::OnReceive() {
  absl::MutexLock lock(&mutex_);
  return Chance(chances_.late_receive) ? SomeMilliseconds() : absl::ZeroDuration();
}

bool FakeFaults::LosesReceive() {
  absl::MutexLock lock(&mutex_);
  if (lost_receives_ > 0) {
    --lost_receives_;
    return true;
  }
  return Chance(chances_.lost_receive);
}

}  // namespace shoal::transport
