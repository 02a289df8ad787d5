#include "worker/paced/emulated_model.h"

#include <sys/prctl.h>

#include <vector>

#include "core/base/status.h"
#include "core/plan/step/emulation.h"
#include "worker/model/access/unit_walk.h"
#include "worker/paced/emulated_device.h"

namespace shoal::worker {
namespace {

// Takes its time at each unit, and makes gradients up.
class EmulatedWork final : public UnitWork {
 public:
  EmulatedWork(const plan::UnitSeconds& seconds, double real_per_emulated, int head, float gradient,
               EmulatedDevice& device)
      : seconds_(seconds),
        scale_(real_per_emulated),
        head_(head),
        gradient_(gradient),
        device_(device) {}

  void Forward(int unit) override {
    if (unit != 0 && unit != head_) {
      Take(seconds_.forward_block);
    }
  }
  void Backward(int unit, std::span<float> accumulator) override {
    if (unit != 0) {
      Take(unit == head_ ? seconds_.head : seconds_.backward_block);
    }
    for (float& element : accumulator) {
      element += gradient_;
    }
  }

 private:
  void Take(double seconds) { device_.Run(absl::Seconds(seconds * scale_)); }

  const plan::UnitSeconds seconds_;
  const double scale_;
  const int head_;
  const float gradient_;
  EmulatedDevice& device_;
};

class EmulatedModel final : public MicrobatchModel {
 public:
  EmulatedModel(const plan::ModelSpec& spec, const plan::EmulateOptions& options, int worker,
                Clock& clock)
      : spec_(spec),
        units_(plan::BuildUnits(spec)),
        pace_(options),
        real_per_emulated_(options.time_scale /
                           options.speeds[static_cast<size_t>(worker) % options.speeds.size()]),
        device_(clock) {
    // By default the kernel may let a thread sleep 50 microseconds longer than asked.
    prctl(PR_SET_TIMERSLACK, 1000UL);
  }

  const plan::ModelSpec& spec() const override { return spec_; }
  const std::vector<plan::UnitSpec>& units() const override { return units_; }

  absl::StatusOr<MicrobatchResult> Evaluate(const PackedBatch& /*batch*/,
                                            UnitSource& /*source*/) override {
    return Unimplemented("emulated devices take no loss");
  }

  absl::StatusOr<MicrobatchResult> Run(const PackedBatch& batch, double loss_scale,
                                       UnitSource& source, GradientSink& sink) override {
    device_.Reset();
    if (batch.token_count() == 0) {
      SHOAL_RETURN_IF_ERROR(WalkUnits(spec_, source, sink, nullptr));
      return MicrobatchResult();
    }
    std::vector<int64_t> lengths;
    for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
      lengths.push_back(batch.cu_seqlens[i] - batch.cu_seqlens[i - 1]);
    }
    const int64_t targets = batch.target_count();
    EmulatedWork work(pace_.Units(lengths, spec_.layers), real_per_emulated_,
                      static_cast<int>(spec_.layers) + 1,
                      static_cast<float>(loss_scale * static_cast<double>(targets)), device_);
    SHOAL_RETURN_IF_ERROR(WalkUnits(spec_, source, sink, &work));
    return MicrobatchResult{.loss_sum = static_cast<double>(targets),
                            .targets = targets,
                            .tokens = batch.token_count()};
  }

 private:
  const plan::ModelSpec spec_;
  const std::vector<plan::UnitSpec> units_;
  const plan::DevicePace pace_;
  const double real_per_emulated_;
  EmulatedDevice device_;
};

}  // namespace

std::unique_ptr<MicrobatchModel> MakeEmulatedModel(const plan::ModelSpec& spec,
                                                   const plan::EmulateOptions& options, int worker,
                                                   Clock& clock) {
  return std::make_unique<EmulatedModel>(spec, options, worker, clock);
}

}  // namespace shoal::worker
