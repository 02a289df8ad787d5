// Which errors a fake fabric makes: at a given request, or drawn from the fabric's seed. All counts
// cover the whole fabric, from the time of the call: 0 is the next request.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/random.h"

namespace shoal::transport {

// Probability of each kind.
struct RandomFaults {
  double request = 0;       // a send request fails, before or after it was executed
  double post = 0;          // PostSend refuses a request of the batch with ENOMEM
  double lost_event = 0;    // a completion event is never raised
  double late_event = 0;    // it comes some milliseconds late
  double late_receive = 0;  // a receive's completion comes late, behind completions of sends
  double lost_receive = 0;  // a receive is used up by immediate data and never completes
};

enum class FakeCall { kCreateQp, kCreateCq, kRegMr, kAllocMw, kAllocPd, kOpenDevice, kModifyQp };

class FakeFaults {
 public:
  explicit FakeFaults(uint64_t seed) : random_(seed, 1) {}

  void SetRandom(const RandomFaults& chances);
  void FailRequest(int64_t after, ibv_wc_status status);
  void FailPost(int64_t after, int error = ENOMEM);
  void FailCall(FakeCall call, int64_t after, int error = ENOMEM);
  void LoseEvents(int64_t count);
  void LoseReceives(int64_t count);  // of writes with immediate data

  // For the fabric.
  struct RequestFault {
    ibv_wc_status status = IBV_WC_SUCCESS;
    bool executed = false;  // the peer's memory has changed nevertheless
  };
  RequestFault OnRequest();
  int OnPost();
  int OnCall(FakeCall call);
  // Returns how long an event is held back; infinite: forever.
  absl::Duration OnEvent();
  absl::Duration OnReceive();
  bool LosesReceive();

 private:
  bool Chance(double chance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration SomeMilliseconds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  RandomFaults chances_ ABSL_GUARDED_BY(mutex_);
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t posts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<FakeCall, int64_t> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, ibv_wc_status> failing_requests_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int> failing_posts_ ABSL_GUARDED_BY(mutex_);
  std::map<FakeCall, std::map<int64_t, int>> failing_calls_ ABSL_GUARDED_BY(mutex_);
  int64_t lost_events_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t lost_receives_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::transport
