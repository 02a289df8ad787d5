// Pushes the model's gradients to the service from a device whose memory the host does not access:
// GradientSink over ParameterClient.
//
// Adds gradients up in fp32 in device memory, in a few buffers of each size or (push per step) one
// for each unit. To push one (push_rule.h), Done marks the place on the compute stream and returns;
// the sink's own thread does the rest:
// - In place, if transports access device memory: waits until the compute stream reaches that place
//   and pushes the buffer, which is free when servers have acknowledged it.
// - Otherwise through the host: copies it to a host buffer, on a stream of its own after that
//   place, and pushes that buffer, which is free when the client has copied it. The device's buffer
//   may be filled again after the copy.
// If servers are slow, first host buffers run out, then the device's, then Accumulator blocks.
//
// Threads: see StepGradients; buffers are returned on the client's I/O threads. Failure: after a
// failed copy or push, the next calls return its error until the step ends. A copy that exceeds
// `device_timeout` fails EndStep and all later steps. Must outlive the client's last BeginStep or
// destruction; does not call it after EndStep.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/buffer_pool.h"
#include "worker/exchange/device_buffers.h"
#include "worker/exchange/push_rule.h"
#include "worker/exchange/step_access.h"

namespace shoal::worker {

class DeviceSink final : public StepGradients, private client::GradientReturn {
 public:
  struct Options {
    PushRule::Options rule;
    int buffers_per_size = 3;  // on the host, and with push per microbatch on the device
    // The client's transports, if it pushes in place, in fp32 then. Empty: it does not.
    std::vector<transport::Transport*> in_place;
    absl::Duration timeout = absl::Seconds(30);  // for servers to take gradients
    // For the device: a copy may wait for all earlier work of the compute stream.
    absl::Duration device_timeout = absl::Minutes(10);
  };
  // `compute` is the stream of the model's work, `host` memory that the device copies to at full
  // speed, used unless in place.
  static absl::StatusOr<std::unique_ptr<DeviceSink>> Create(const Options& options,
                                                            const StepEnvironment& environment);
  ~DeviceSink() override;

  void BeginStep(const PushWork& work) override;
  absl::Status PushRest() override;
  absl::Status Flush() override;
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override;

  bool Wants(int unit) override {
    EnterGradient(*env_.time_kinds, unit);
    return rule_.Wants(unit);
  }
  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::StatusOr<UnitGradient> Gradient(int unit) override;
  absl::Status Done(int unit) override { return Push(unit, rule_.Done(unit)); }
  absl::Status DoneTied() override { return Push(0, rule_.Done(0, /*tied=*/true)); }
  void AtPack(int64_t number) override { rule_.AtPack(number); }
  bool Acknowledged(int64_t pack) override ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t buffer_bytes() const { return buffer_bytes_; }  // on the device

 private:
  struct Outgoing {
    int unit = 0;
    plan::Contribution contribution;
    std::byte* data = nullptr;  // on the device
    std::shared_ptr<Event> complete;
  };
  struct Leaving {
    int unit = 0;
    plan::Contribution contribution;
    std::byte* data = nullptr;  // to be pushed: on the host, or in place
    std::shared_ptr<Event> ready;
  };

  DeviceSink(const Options& options, const StepEnvironment& environment);
  void Returned(int unit, const void* gradient) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Compute thread.
  absl::StatusOr<DeviceBuffer> AwaitAccumulator(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Push(int unit, const std::optional<plan::Contribution>& contribution)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The sink's own thread.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CarryOn() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartCopies() ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeInPlace() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> AwaitHostBuffer(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PushOldest() ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Frees memory that will not be pushed (any more) and that no stream uses.
  void Free(int unit, std::byte* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why pushes do not drain, if the client knows; DeadlineExceeded if it is only waiting.
  absl::Status WhyNotDrained() { return env_.client->Finish(absl::ZeroDuration()).status(); }
  bool in_place() const { return !options_.in_place.empty(); }

  const plan::UnitSpec& spec(int unit) const { return env_.units[static_cast<size_t>(unit)]; }
  int64_t BytesOf(int unit) const { return spec(unit).count * 4; }

  const Options options_;
  const StepEnvironment env_;
  int64_t buffer_bytes_ = 0;
  PushRule rule_;
  std::vector<std::byte*> filling_;  // by unit; null: not requested since its last push

  // The sink's own thread.
  const std::unique_ptr<Stream> outward_;
  std::deque<Leaving> leaving_;
  absl::Time oldest_since_;  // since when the first of them is the oldest

  absl::Mutex mutex_;
  DeviceBuffers accumulators_ ABSL_GUARDED_BY(mutex_);
  client::BufferPool host_buffers_ ABSL_GUARDED_BY(mutex_);  // none in place
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  // Of each gradient that is outgoing, or leaving and not pushed: its pack.
  std::deque<int64_t> pending_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);                   // of the step
  absl::Status lasting_ ABSL_GUARDED_BY(mutex_);                 // of this and all later steps
  std::shared_ptr<const Event> ending_ ABSL_GUARDED_BY(mutex_);  // after the step's computing
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;                 // EndStep waits
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::worker
