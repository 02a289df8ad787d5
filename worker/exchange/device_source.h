// The model's weights from the service, for a device whose memory the host does not touch:
// UnitSource over ParameterClient.
//
// A thread of its own carries units in the order of use (worker/exchange/step_uses.h), in one of
// two ways. Landed, where the client's buffers are in the device's memory: it gets one from the
// client, and the model computes in the client's own buffer; Release marks the place on the compute
// stream after which that buffer is the client's again. Else with a copy: it gets one from the
// client, whose buffers are memory of the host that the device copies from at full speed, takes a
// free buffer of the device, and puts the copy on a stream of its own; Release marks the place on
// the compute stream after which the buffer of the device may be filled again. Get waits until the
// unit has landed, or its copy is on that stream, for which it lets the compute stream wait. So
// neither thread ever waits for what the device computes, and the host is ahead of it by as much as
// there are buffers.
//
// What is fetched is what ServiceSource fetches: the client keeps nothing for itself, and a unit
// that is fetched again waits until its last use, or copy, has left the client's buffer.
//
// Threads: as StepWeights says. Failure: what goes wrong with a fetch or a copy is returned by the
// next Get, until the step ends. A copy, or landed a use, that does not end in `timeout` makes
// EndStep fail, and with it all later steps.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/parameter_client.h"
#include "core/base/time_kind_clock.h"
#include "core/model/model_spec.h"
#include "worker/backend/backend.h"
#include "worker/exchange/device_buffers.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/exchange/step_access.h"
#include "worker/exchange/step_uses.h"

namespace shoal::worker {

class DeviceSource final : public StepWeights {
 public:
  struct Options {
    DType compute_type = DType::kF32;
    StepUses::Options uses;
    std::vector<int> units;    // that are got; there are buffers for these alone
    int buffers_per_size = 4;  // with layer residency: units held + prefetched
    // The client's buffers are in the device's memory: there are none here.
    bool landed = false;
    // For the device to get on: a copy may wait for all that was put on the compute stream.
    absl::Duration timeout = absl::Minutes(10);
  };
  // `compute` is the stream of the model's work. The client keeps nothing for the step, unless they
  // have landed what this keeps; its buffers must stay until this is gone.
  static absl::StatusOr<std::unique_ptr<DeviceSource>> Create(
      const Options& options, const std::vector<plan::UnitSpec>& units, Device* device,
      Stream* compute, client::ParameterClient* client, LayerBarriers* barriers,
      TimeKindClock* time_kinds);
  ~DeviceSource() override;

  void BeginStep(std::span<const int> uses) override;
  void AddUses(std::span<const int> uses) override { uses_.AddUses(uses); }
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override;

  absl::StatusOr<WeightsView> Get(int unit) override;
  void Release(int unit) override;

  int64_t buffer_bytes() const { return buffer_bytes_; }  // on the device, of its own

 private:
  struct Unit {
    bool started = false;                 // it is there or on its way
    int uses = 0;                         // started and not released
    std::byte* data = nullptr;            // null: not landed, or not on the copy stream yet
    std::shared_ptr<const Event> copied;  // null: landed
  };
  struct Fetch {
    int unit = 0;
    bool prefetched = false;  // at the client, with a use
  };
  // That still reads the client's buffer: a copy, or landed a use.
  struct Reader {
    int unit = 0;
    std::shared_ptr<Event> done;
  };

  DeviceSource(const Options& options, const std::vector<plan::UnitSpec>& units, Device* device,
               Stream* compute, client::ParameterClient* client, LayerBarriers* barriers,
               TimeKindClock* time_kinds);

  // The compute thread's.
  void StartDue() ABSL_LOCKS_EXCLUDED(mutex_);

  // Of the thread that carries.
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

  // The device's last use of it is over after that event.
  void LetGo(int unit, std::shared_ptr<Event> after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the client fetch what is due, in order, as far as it has buffers.
  void Prefetch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLeavingClient(int unit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Unit& at(int unit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return units_[static_cast<size_t>(unit)];
  }
  const std::string& NameOf(int unit) const { return specs_[static_cast<size_t>(unit)].name; }

  const Options options_;
  const std::vector<plan::UnitSpec> specs_;
  Stream* const compute_;
  client::ParameterClient* const client_;
  TimeKindClock* const time_kinds_;
  const std::unique_ptr<Stream> inward_;  // the carrying thread's
  int64_t buffer_bytes_ = 0;
  StepUses uses_;
  int64_t started_ = 0;  // uses before this one were started

  absl::Mutex mutex_;
  DeviceBuffers buffers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Unit> units_ ABSL_GUARDED_BY(mutex_);
  std::deque<Fetch> fetches_ ABSL_GUARDED_BY(mutex_);  // to come
  bool getting_ ABSL_GUARDED_BY(mutex_) = false;       // one that the client had no buffer for
  std::deque<Reader> readers_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);             // of the step
  absl::Status lasting_ ABSL_GUARDED_BY(mutex_);           // of all from now on
  std::shared_ptr<Event> ending_ ABSL_GUARDED_BY(mutex_);  // of all that the step computes
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;           // the step is to end
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::worker
