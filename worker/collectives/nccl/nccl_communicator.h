// A communicator of NCCL. Only worker/collectives/nccl includes it.
//
// One lock guards NCCL's handle, so that no two calls use it at once; none of its calls blocks, and
// waits between them release the lock. Each call's event goes to a list; the watching thread
// removes those that are done and checks the oldest of the others.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/nccl/nccl_api.h"

namespace shoal::worker {

class NcclCommunicator final : public Communicator {
 public:
  static absl::StatusOr<std::unique_ptr<Communicator>> Join(const Nccl& nccl, const Device& device,
                                                            const CommunicatorOptions& options);
  ~NcclCommunicator() override;

  int rank() const override { return options_.rank; }
  int ranks() const override { return options_.ranks; }
  absl::Status AllGather(const void* from, void* to, int64_t count, DType dtype, Stream& stream,
                         std::string_view what) override;
  absl::Status ReduceScatter(const void* from, void* to, int64_t count, DType dtype, Stream& stream,
                             std::string_view what) override;
  absl::Status Send(const void* from, int64_t bytes, int peer, Stream& stream,
                    std::string_view what) override;
  absl::Status Receive(void* to, int64_t bytes, int peer, Stream& stream,
                       std::string_view what) override;
  void Abort(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status status() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Pending {
    std::string what;
    std::unique_ptr<Event> done;
  };

  NcclCommunicator(const Nccl& nccl, const Device& device, const CommunicatorOptions& options)
      : nccl_(nccl), device_(device), options_(options) {}
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `call`, which puts work on the stream, and records an event after it.
  absl::Status Call(Stream& stream, std::string_view what,
                    const std::function<ncclResult_t(ncclComm_t)>& call)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until NCCL's last call is complete; its error makes the communicator fail.
  absl::Status Settle(ncclResult_t result, std::string_view what, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the error that it now has. Releases the lock while NCCL aborts, which may wait for work
  // on the GPU: others must learn of the failure before that.
  absl::Status Fail(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPeer(int peer, std::string_view what) const;

  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  void DropDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Nccl nccl_;
  const Device& device_;
  const CommunicatorOptions options_;

  mutable absl::Mutex mutex_;
  ncclComm_t communicator_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null once it has failed
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  absl::Time oldest_since_ ABSL_GUARDED_BY(mutex_);  // when it became the oldest
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::worker
