// A lease in etcd, which a thread renews three times before it would end. It is over when etcd says
// so, when it could not be renewed by its own deadline, or when Lose was called: then `lost` runs,
// and nothing of it comes back. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/threads/steady_condition.h"
#include "core/rpc/channel.h"

namespace shoal::server {

class EtcdLease {
 public:
  struct Granted {
    int64_t id = 0;
    absl::Duration length;
    absl::Time until;  // by RealClock; etcd's own end is later
  };
  // etcd may give a longer one than is asked for.
  static absl::StatusOr<Granted> Grant(rpc::Channel& etcd, absl::Duration length);
  // Ends it now, or leaves it to its end where etcd does not answer.
  static void Revoke(rpc::Channel& etcd, int64_t id);

  // `lost` runs at most once, on a thread of this or within CheckHeld or Lose. It must not use the
  // lease.
  EtcdLease(std::shared_ptr<rpc::Channel> etcd, const Granted& granted,
            std::function<void(const absl::Status&)> lost);
  ~EtcdLease();  // revokes it

  // OK: nobody else can have it yet. Else why, once `lost` has run.
  absl::Status CheckHeld();
  // Returns once `lost` has run, on whatever thread.
  void Lose(const absl::Status& why);

 private:
  void Keep();
  void Renew(absl::Duration left);

  const std::shared_ptr<rpc::Channel> etcd_;
  const int64_t id_;
  const std::function<void(const absl::Status&)> lost_;

  absl::Mutex mutex_;
  SteadyCondition changed_;
  absl::Duration length_ ABSL_GUARDED_BY(mutex_);
  absl::Time until_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_ ABSL_GUARDED_BY(mutex_);
  absl::Status no_answer_ ABSL_GUARDED_BY(mutex_);  // to the last renewal
  absl::Status why_ ABSL_GUARDED_BY(mutex_);        // it is over
  bool told_ ABSL_GUARDED_BY(mutex_) = false;       // `lost` has run
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::server
