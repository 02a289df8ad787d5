// Gets the model's weights from the service for a device whose memory the host does not access:
// UnitSource over ParameterClient.
//
// A thread of its own carries units in the order of use (step_uses.h):
// - Landed, if the client's buffers are in device memory: the model computes in the client's own
//   buffer. Release marks the place on the compute stream after which the client may reuse it.
// - Otherwise copied, on a stream of its own, from the client's buffer in host memory to a free
//   buffer of the device. Release marks the place after which that may be filled again.
// Get blocks until the unit has landed or its copy is enqueued; the compute stream waits for the
// copy. So neither thread waits for the device while there are buffers.
//
// With step residency, units that are frozen stay on the device over the steps. Else fetches are
// ServiceSource's: the client keeps nothing, and fetching a unit again waits until its
// last use, or copy, has left the client's buffer.
//
// Threads: see StepWeights. Failure: after a failed fetch or copy, the next Get returns its error
// until the step ends. A copy, or a use of a landed unit, that exceeds `timeout` fails EndStep and
// all later steps.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/exchange/device_buffers.h"
#include "worker/exchange/step_access.h"
#include "worker/exchange/step_uses.h"

namespace shoal::worker {

class DeviceSource final : public StepWeights {
 public:
  struct Options {
    DType compute_type = DType::kF32;
    StepUses::Options uses;
    std::vector<int> units;    // to get; only these have buffers
    int buffers_per_size = 4;  // with layer residency: units held + prefetched
    // The client's buffers are in device memory: none here.
    bool landed = false;
    // For the device: a copy may wait for all earlier work of the compute stream.
    absl::Duration timeout = absl::Minutes(10);
  };
  // `compute` is the stream of the model's work. The client keeps nothing for the step, except
  // landed units if this keeps them; its buffers must outlive this.
  static absl::StatusOr<std::unique_ptr<DeviceSource>> Create(const Options& options,
                                                              const StepEnvironment& environment);
  ~DeviceSource() override;

  void BeginStep(std::span<const int> uses) override;
  void AddUses(std::span<const int> uses) override { uses_.AddUses(uses); }
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override;

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override;

  int64_t buffer_bytes() const { return buffer_bytes_; }  // on the device, its own

 private:
  struct Unit {
    bool started = false;           // available or on its way
    int uses = 0;                   // started, not released
    std::byte* data = nullptr;      // null: not landed, or its copy not enqueued
    std::shared_ptr<Event> copied;  // null: landed
    int last_server = 0;            // as the client's view has it
  };
  struct Fetch {
    int unit = 0;
    bool prefetched = false;  // by the client, which holds a use
  };
  // Reads the client's buffer until `done`: a copy, or a use of a landed unit.
  struct Reader {
    int unit = 0;
    std::shared_ptr<Event> done;
  };

  DeviceSource(const Options& options, const StepEnvironment& environment);

  // Compute thread.
  void StartDue() ABSL_LOCKS_EXCLUDED(mutex_);

  // The source's own thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CarryNext() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status FreeBuffer() ABSL_LOCKS_EXCLUDED(mutex_);
  void Land(int unit, const client::ParameterClient::View& view) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartCopy(int unit, const client::ParameterClient::View& view)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<DeviceBuffer> AwaitBuffer(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AwaitOldestReader() ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishReaders() ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Frees the unit's buffer, which the device uses until that event.
  void LetGo(int unit, std::shared_ptr<Event> after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the client fetch due units, in order, as far as it has buffers.
  void Prefetch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Stays(int unit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LetGoOfRest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLeavingClient(int unit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Unit& at(int unit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return units_[static_cast<size_t>(unit)];
  }
  const std::string& NameOf(int unit) const { return env_.units[static_cast<size_t>(unit)].name; }

  const Options options_;
  const StepEnvironment env_;
  const std::unique_ptr<Stream> inward_;  // the source's own thread's
  int64_t buffer_bytes_ = 0;
  StepUses uses_;
  int64_t started_ = 0;  // uses before this one were started

  absl::Mutex mutex_;
  DeviceBuffers buffers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Unit> units_ ABSL_GUARDED_BY(mutex_);
  std::deque<Fetch> fetches_ ABSL_GUARDED_BY(mutex_);  // to come
  bool getting_ ABSL_GUARDED_BY(mutex_) = false;       // a fetch for which the client had no buffer
  std::deque<Reader> readers_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);             // of the step
  absl::Status lasting_ ABSL_GUARDED_BY(mutex_);           // of this and all later steps
  std::shared_ptr<Event> ending_ ABSL_GUARDED_BY(mutex_);  // after the step's computing
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;           // EndStep waits
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::worker
