// The devices of a fake fabric: their connections and the work that they do. FakeFabric and the
// hosts' VerbsApi use it and lock its mutex.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/random.h"
#include "core/transport/verbs/testing/fake_objects.h"

namespace shoal::transport {

class FakeEngine {
 public:
  explicit FakeEngine(const FakeFabric::Options& options)
      : faults(options.seed), manual(options.manual), random_(options.seed, 0) {}

  absl::Mutex mutex;
  FakeFaults faults;
  const bool manual;

  // Runs the worker's loop, until stopping.
  void Run();
  void Stop();
  bool Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Devices.
  FakeDeviceState* AddDevice(int host, FakeDevice device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  int hosts ABSL_GUARDED_BY(mutex) = 0;
  LiveObjects live ABSL_GUARDED_BY(mutex);
  uint32_t next_queue_pair ABSL_GUARDED_BY(mutex) = 0x100;
  int64_t executed ABSL_GUARDED_BY(mutex) = 0;
  bool receives_held ABSL_GUARDED_BY(mutex) = false;
  std::vector<FakeDeviceState*> Devices(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns the port to which an address of a path leads from a device.
  std::optional<FakePortRef> Route(const FakePortRef& from, const ibv_ah_attr& path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RaiseAsync(FakeDeviceState& device, ibv_async_event event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Memory.
  void AddRegion(FakeMr* region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AddWindow(FakeMw* window) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RemoveRegion(FakeMr* region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RemoveWindow(FakeMw* window) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Queue pairs.
  void AddQueuePair(FakeQp* qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RemoveQueuePair(FakeQp* qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  FakeQp* QueuePair(uint32_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void EnterError(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Moves all of the device's queue pairs in use into error.
  void EnterErrorOn(const FakeDeviceState& device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Reset(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Call when there may be something to do for it.
  void Wake(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Withdraws a completion queue's events that nobody has taken.
  void WithdrawEvents(FakeCq& cq) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  absl::Time Now() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void WakeAt(absl::Time time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void WakeDue(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool StepRunnable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool RaiseLateEvents(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Actions of a queue pair; false if there is nothing of the kind to do now.
  bool Advance(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);   // begins or continues a request
  bool MoveRead(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);  // the oldest read under way
  bool Complete(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);  // the oldest request
  bool Deliver(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);   // a receive's completion
  bool Flush(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);     // for a queue pair in error

  // Steps of requests (fake_requests.cc).
  bool Begin(FakeQp& qp, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void BeginRemote(FakeQp& qp, FakeQp& peer, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool MayAccessPieces(const FakeQp& qp, const FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void BeginRead(FakeQp& qp, FakeQp& peer, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Bind(FakeQp& qp, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Invalidate(FakeQp& qp, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void MoveWrite(FakeQp& qp, FakeQp& peer, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void MoveSend(FakeQp& qp, FakeQp& peer, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Arrive(FakeQp& peer, const FakeSend& send, ibv_wc_status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  static void Done(FakeSend& send);
  // Makes the request end the queue pair once those before it have completed.
  void Fail(FakeQp& qp, FakeSend& send, ibv_wc_status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Same as above, and moves the peer's queue pair into error as well.
  void Refuse(FakeQp& qp, FakeQp& peer, FakeSend& send, ibv_wc_status status, ibv_event_type event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Returns the peer if it answers, or null.
  FakeQp* Reach(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RetryLater(FakeQp& qp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RetryNotReady(FakeQp& qp, FakeQp& peer, FakeSend& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void PushCompletion(ibv_cq* cq, const FakeCompletion& completion)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void PushSendCompletion(FakeQp& qp, const FakeSend& send, ibv_wc_status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  void RaiseEvent(FakeCq& cq) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  static void Unbind(FakeMw& window);

  // Memory access (fake_memory.cc). Null if the access is not allowed.
  std::byte* LocalBytes(const FakeQp& qp, uint32_t key, uint64_t address, uint64_t bytes,
                        int access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::byte* RemoteBytes(const FakeQp& target, uint32_t key, uint64_t address, uint64_t bytes,
                         int access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Copy between a request's pieces at an offset and flat memory. False if a piece may not be
  // accessed.
  bool Gather(const FakeQp& qp, const FakeSend& send, uint64_t offset, std::span<std::byte> into)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool Scatter(const FakeQp& qp, std::span<const ibv_sge> pieces, uint64_t offset,
               std::span<const std::byte> from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Random random_ ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<FakeDeviceState>> devices_ ABSL_GUARDED_BY(mutex);
  std::map<uint32_t, FakeQp*> queue_pairs_ ABSL_GUARDED_BY(mutex);
  std::vector<FakeQp*> runnable_ ABSL_GUARDED_BY(mutex);
  struct LateEvent {
    absl::Time at;
    FakeCq* cq = nullptr;
  };
  std::vector<LateEvent> late_events_ ABSL_GUARDED_BY(mutex);
  // By the part of the key that stays when a window is rebound.
  std::map<uint32_t, FakeMr*> regions_ ABSL_GUARDED_BY(mutex);
  std::map<uint32_t, FakeMw*> windows_ ABSL_GUARDED_BY(mutex);
  uint32_t next_key_ ABSL_GUARDED_BY(mutex) = 1;
  absl::Time manual_now_ ABSL_GUARDED_BY(mutex) = absl::UnixEpoch();
  absl::CondVar work_;
  bool stopping_ ABSL_GUARDED_BY(mutex) = false;
  absl::Time next_due_ ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
};

}  // namespace shoal::transport
