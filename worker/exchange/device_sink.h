// The model's gradients to the service, from a device whose memory the host does not touch:
// GradientSink over ParameterClient.
//
// Adds gradients up in fp32 in the device's memory, in a few buffers of each size or (push per
// step) one for each unit. When one goes out (push_rule.h), Done marks the place on the compute
// stream and returns. The sink's own thread does the rest.
// - In place, where transports write out of the device's memory: waits until the compute stream is
//   at that place and pushes the buffer, which comes back when servers have acknowledged it.
// - Else through the host: copies it to a buffer of the host on a stream of its own, behind that
//   place, and pushes that buffer; it comes back when the client has taken it over. The device's
//   buffer may be filled behind the copy.
// If servers are slow, first the host's buffers run out, then the device's, then Accumulator waits.
//
// Threads: as StepGradients says; buffers come back on the client's I/O threads. Failure: the next
// call returns that of a copy or push, until the step ends. A copy that does not end within
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
    // The client's, where it pushes in place; it pushes fp32 then. Empty: it does not.
    std::vector<transport::Transport*> in_place;
    absl::Duration timeout = absl::Seconds(30);  // for servers to take gradients
    // For the device to get on: a copy may wait for all that was put on the compute stream.
    absl::Duration device_timeout = absl::Minutes(10);
  };
  // `compute` is the stream of the model's work, `host` memory that the device's copies reach at
  // full speed, and where there is none in place.
  static absl::StatusOr<std::unique_ptr<DeviceSink>> Create(const Options& options,
                                                            const StepEnvironment& environment);
  ~DeviceSink() override;

  void BeginStep(std::optional<int64_t> microbatches) override;
  absl::Status PushRest() override;
  absl::Status Flush() override;
  absl::Status EndStep() override;
  void Cancel(const absl::Status& why) override;

  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::StatusOr<UnitGradient> Gradient(int unit) override;
  absl::Status Done(int unit) override;

  int64_t buffer_bytes() const { return buffer_bytes_; }  // on the device

 private:
  struct Outgoing {
    int unit = 0;
    std::byte* data = nullptr;  // on the device
    std::shared_ptr<Event> complete;
  };
  struct Leaving {
    int unit = 0;
    std::byte* data = nullptr;  // to be pushed: on the host, or in place
    std::shared_ptr<Event> ready;
  };

  DeviceSink(const Options& options, const StepEnvironment& environment);
  void Returned(int unit, const void* gradient) override ABSL_LOCKS_EXCLUDED(mutex_);

  // The compute thread's.
  absl::StatusOr<DeviceBuffer> AwaitAccumulator(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Push(int unit) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of the thread that carries.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CarryOn() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartCopies() ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeInPlace() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> AwaitHostBuffer(int unit) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PushOldest() ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // What was to be pushed, or was, is not any more, and nothing on a stream uses it.
  void Free(int unit, std::byte* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why pushes do not drain, if the client knows; DeadlineExceeded if it just waits too.
  absl::Status WhyNotDrained() { return env_.client->Finish(absl::ZeroDuration()).status(); }
  bool in_place() const { return !options_.in_place.empty(); }

  const plan::UnitSpec& spec(int unit) const { return env_.units[static_cast<size_t>(unit)]; }
  int64_t BytesOf(int unit) const { return spec(unit).count * 4; }

  const Options options_;
  const StepEnvironment env_;
  int64_t buffer_bytes_ = 0;
  PushRule rule_;
  std::vector<std::byte*> filling_;  // by unit; null: not asked for since it went out

  // The carrying thread's.
  const std::unique_ptr<Stream> outward_;
  std::deque<Leaving> leaving_;
  absl::Time oldest_since_;  // when the first of them became that

  absl::Mutex mutex_;
  DeviceBuffers accumulators_ ABSL_GUARDED_BY(mutex_);
  client::BufferPool host_buffers_ ABSL_GUARDED_BY(mutex_);  // none in place
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;   // outgoing, or leaving and not pushed
  absl::Status error_ ABSL_GUARDED_BY(mutex_);    // of the step
  absl::Status lasting_ ABSL_GUARDED_BY(mutex_);  // of all from now on
  std::shared_ptr<const Event> ending_ ABSL_GUARDED_BY(mutex_);  // of all that the step computes
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;                 // the step is to end
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace shoal::worker
