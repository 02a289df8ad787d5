// The model's gradients to the service: GradientSink over ParameterClient.
//
// Push per microbatch: a unit's gradient goes out when the microbatch is done with it, from one of
// a few buffers of its size; the next microbatch fills another meanwhile, and waits if none has
// come back. Push per step: each unit has a buffer of its own, microbatches are added up in it in
// fp32, and it goes out when the last of the step's microbatches is done with it.
//
// Units and microbatches may come in any order (in a pipeline they do): each unit is counted by
// itself. A buffer is being filled for one unit at a time, and only a unit with two contributions
// (unit_access.h) keeps one between calls; so the few buffers of push per microbatch suffice for
// any order. Where contributions are pushed by themselves, none does.
//
// Accumulator and Done are called by the compute thread; buffers come back on the client's I/O
// threads. Must outlive the client's last BeginStep or destruction.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/frame_pool.h"
#include "client/parameter_client.h"
#include "common/phase_clock.h"
#include "plan/model_spec.h"
#include "worker/model/unit_access.h"
#include "worker/trainer/layer_meetings.h"

namespace shoal::worker {

class ServiceSink final : public GradientSink, private client::GradientReturn {
 public:
  struct Options {
    bool push_per_step = false;
    // With push per microbatch: contributions are not added up either
    // (plan::PushesEachContribution).
    bool push_each_contribution = false;
    // By unit, of a microbatch; 0: a unit that is not this worker's (plan::StageContributions).
    std::vector<int> contributions;
    int buffers_per_size = 3;  // with push per microbatch
    absl::Duration timeout = absl::Seconds(30);
    // Told of every unit that a microbatch is done with; may be empty.
    std::function<void(int unit)> on_done;
  };
  static absl::StatusOr<std::unique_ptr<ServiceSink>> Create(
      const Options& options, const std::vector<plan::UnitSpec>& units,
      client::ParameterClient* client, LayerMeetings* meetings, PhaseClock* phases);

  // After the client's BeginStep. How many microbatches the step has, where that is known; where it
  // is not, PushRest follows the last one.
  void BeginStep(std::optional<int64_t> microbatches);
  // Pushes what push per step has kept back.
  absl::Status PushRest();

  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::Status Done(int unit) override;

  int64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  ServiceSink(const Options& options, const std::vector<plan::UnitSpec>& units,
              client::ParameterClient* client, LayerMeetings* meetings, PhaseClock* phases)
      : options_(options),
        units_(units),
        client_(client),
        meetings_(meetings),
        phases_(phases),
        filling_(units.size()),
        done_(units.size(), 0) {}
  void Returned(int unit, std::span<const float> gradient) override;
  float* AwaitBuffer(int unit);
  absl::Status Push(int unit);

  const Options options_;
  const std::vector<plan::UnitSpec> units_;
  client::ParameterClient* const client_;
  LayerMeetings* const meetings_;
  PhaseClock* const phases_;
  int64_t buffer_bytes_ = 0;
  std::optional<int64_t> microbatches_;  // of the step
  std::vector<float*> filling_;          // by unit; null: not asked for since it was pushed
  std::vector<int64_t> done_;            // by unit: contributions of this step

  absl::Mutex mutex_;
  client::FramePool buffers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker
