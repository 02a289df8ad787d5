// Pushes the model's gradients to the service: GradientSink over ParameterClient.
//
// Push per microbatch: pushes a unit's gradient when the microbatch is done with it, from one of a
// few buffers of its size; the next microbatch fills another, or waits for one. Push per step: each
// unit has a buffer, which sums microbatches in fp32 and is pushed after the last.
//
// Units and microbatches may come in any order (push_rule.h): only a unit with two contributions
// (unit_access.h) keeps a buffer between calls, so a few suffice for any order.
//
// The compute thread calls Accumulator and Done; buffers are returned on the client's I/O threads.
// Must outlive the client's last BeginStep or destruction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/buffer_pool.h"
#include "client/parameter_client.h"
#include "core/base/time_kind_clock.h"
#include "core/model/model_spec.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/exchange/push_rule.h"
#include "worker/exchange/step_access.h"

namespace shoal::worker {

class ServiceSink final : public StepGradients, private client::GradientReturn {
 public:
  struct Options {
    PushRule::Options rule;
    int buffers_per_size = 3;  // with push per microbatch
    absl::Duration timeout = absl::Seconds(30);
  };
  static absl::StatusOr<std::unique_ptr<ServiceSink>> Create(
      const Options& options, const std::vector<plan::UnitSpec>& units,
      client::ParameterClient* client, LayerBarriers* barriers, TimeKindClock* time_kinds);

  void BeginStep(const PushWork& work) override;
  absl::Status PushRest() override;
  absl::Status Flush() override { return absl::OkStatus(); }  // Done pushes everything
  bool Acknowledged(int64_t pack) override {
    return !rule_.push_per_step() && client_->Acknowledged(pack);
  }
  absl::Status EndStep() override { return absl::OkStatus(); }
  void Cancel(const absl::Status& why) override;

  bool Wants(int unit) override {
    EnterGradient(*time_kinds_, unit);
    return rule_.Wants(unit);
  }
  absl::StatusOr<std::span<float>> Accumulator(int unit) override;
  absl::Status Done(int unit) override { return Push(unit, rule_.Done(unit)); }
  absl::Status DoneTied() override { return Push(0, rule_.Done(0, /*tied=*/true)); }
  void AtPack(int64_t number) override { rule_.AtPack(number); }

  int64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  ServiceSink(const Options& options, const std::vector<plan::UnitSpec>& units,
              client::ParameterClient* client, LayerBarriers* barriers, TimeKindClock* time_kinds)
      : options_(options),
        units_(units),
        client_(client),
        barriers_(barriers),
        time_kinds_(time_kinds),
        rule_(options.rule),
        filling_(units.size()) {}
  void Returned(int unit, const void* gradient) override;
  float* AwaitBuffer(int unit);
  absl::Status Push(int unit, const std::optional<plan::Contribution>& contribution);

  const Options options_;
  const std::vector<plan::UnitSpec> units_;
  client::ParameterClient* const client_;
  LayerBarriers* const barriers_;
  TimeKindClock* const time_kinds_;
  int64_t buffer_bytes_ = 0;
  PushRule rule_;
  std::vector<float*> filling_;  // by unit; null: not requested since its last push

  absl::Mutex mutex_;
  client::BufferPool buffers_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shoal::worker
