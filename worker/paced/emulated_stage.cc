#include "worker/paced/emulated_stage.h"

#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "core/base/status.h"
#include "core/model/adapters.h"
#include "worker/paced/emulated_device.h"
#include "worker/paced/memory_pattern.h"

namespace shoal::worker {
namespace {

// What a pattern stands for, by virtual stage and microbatch.
enum class Content : uint8_t { kActivation, kGradient, kSaved, kLeft };

class EmulatedStage final : public StageModel {
 public:
  EmulatedStage(const EmulatedStageOptions& options, Clock& clock)
      : options_(options),
        units_(plan::BuildUnits(options.spec)),
        head_(static_cast<int>(options.spec.layers) + 1),
        clock_(clock),
        device_(clock) {}

  const plan::ModelSpec& spec() const override { return options_.spec; }
  const std::vector<plan::UnitSpec>& units() const override { return units_; }

  absl::Status BeginStep(std::span<const PackedBatch> microbatches, double loss_scale,
                         UnitSource& source, GradientSink& sink) override {
    // By default the kernel may let a thread sleep 50 microseconds longer than asked.
    prctl(PR_SET_TIMERSLACK, 1000UL);
    source_ = &source;
    sink_ = &sink;
    microbatches_.clear();
    for (const PackedBatch& batch : microbatches) {
      const auto number = static_cast<int>(microbatches_.size());
      Microbatch& microbatch = microbatches_.emplace_back();
      microbatch.fingerprint =
          Mixed(std::bit_cast<uint64_t>(loss_scale), static_cast<uint64_t>(number));
      for (const int32_t token : batch.tokens) {
        microbatch.fingerprint = Mixed(microbatch.fingerprint, static_cast<uint64_t>(token));
      }
      const int64_t targets = batch.target_count();
      microbatch.gradient = static_cast<float>(loss_scale * static_cast<double>(targets));
      microbatch.result = {.loss_sum = HasHead() ? static_cast<double>(targets) : 0,
                           .targets = targets,
                           .tokens = batch.token_count()};
      for (int chunk = 0; chunk < options_.shape.chunks; ++chunk) {
        microbatch.costs.push_back(options_.cost(chunk, number, batch));
        microbatch.bytes.push_back(options_.bytes(chunk, number, batch));
      }
    }
    device_.Reset();
    return absl::OkStatus();
  }

  plan::ChunkBytes BytesOf(int chunk, int microbatch) const override {
    return At(microbatch).bytes[static_cast<size_t>(chunk)];
  }

  absl::Status Forward(int chunk, int microbatch, std::byte* activations, const std::byte* input,
                       std::byte* output) override {
    const int here = VirtualStage(chunk);
    const plan::ChunkBytes bytes = BytesOf(chunk, microbatch);
    if (input != nullptr) {
      SHOAL_RETURN_IF_ERROR(
          Check(input, bytes.message, Content::kActivation, here - 1, microbatch, "its input"));
    }
    for (int unit = Range(chunk).first; unit < Range(chunk).end(); ++unit) {
      if (unit != head_) {
        SHOAL_RETURN_IF_ERROR(Touch(unit));
      }
    }
    Fill(activations, bytes.activations, Content::kSaved, here, microbatch);
    if (output != nullptr) {
      Fill(output, bytes.message, Content::kActivation, here, microbatch);
    }
    Take(CostOf(chunk, microbatch).forward);
    return absl::OkStatus();
  }

  absl::Status BackwardInput(int chunk, int microbatch, std::byte* activations,
                             std::byte* gradients, const std::byte* d_output,
                             std::byte* d_input) override {
    SHOAL_RETURN_IF_ERROR(ForInput(chunk, microbatch, activations, d_output, d_input));
    Fill(gradients, BytesOf(chunk, microbatch).gradients, Content::kLeft, VirtualStage(chunk),
         microbatch);
    Take(CostOf(chunk, microbatch).backward_input);
    return absl::OkStatus();
  }

  absl::Status BackwardWeights(int chunk, int microbatch, std::byte* activations,
                               std::byte* gradients) override {
    SHOAL_RETURN_IF_ERROR(Check(gradients, BytesOf(chunk, microbatch).gradients, Content::kLeft,
                                VirtualStage(chunk), microbatch, "what its backward left"));
    SHOAL_RETURN_IF_ERROR(ForWeights(chunk, microbatch, activations));
    Take(CostOf(chunk, microbatch).backward_weights);
    return absl::OkStatus();
  }

  absl::Status Backward(int chunk, int microbatch, std::byte* activations,
                        const std::byte* d_output, std::byte* d_input) override {
    SHOAL_RETURN_IF_ERROR(ForInput(chunk, microbatch, activations, d_output, d_input));
    SHOAL_RETURN_IF_ERROR(ForWeights(chunk, microbatch, activations));
    const plan::ChunkCost cost = CostOf(chunk, microbatch);
    Take(cost.backward_input + cost.backward_weights);
    return absl::OkStatus();
  }

  absl::Status Loss(int /*chunk*/, int /*microbatch*/, std::byte* /*activations*/) override {
    return absl::OkStatus();
  }
  absl::Status EndStep() override { return absl::OkStatus(); }
  MicrobatchResult result(int microbatch) const override { return At(microbatch).result; }

 private:
  struct Microbatch {
    uint64_t fingerprint = 0;
    float gradient = 0;  // of every element
    MicrobatchResult result;
    std::vector<plan::ChunkCost> costs;  // by chunk
    std::vector<plan::ChunkBytes> bytes;
  };

  const Microbatch& At(int microbatch) const {
    return microbatches_[static_cast<size_t>(microbatch)];
  }
  const plan::ChunkCost& CostOf(int chunk, int microbatch) const {
    return At(microbatch).costs[static_cast<size_t>(chunk)];
  }
  int VirtualStage(int chunk) const { return options_.shape.VirtualStageOf(options_.stage, chunk); }
  bool HasHead() const {
    return options_.shape.At(options_.shape.VirtualStages() - 1).stage == options_.stage;
  }
  const plan::UnitRange& Range(int chunk) const {
    return options_.split[static_cast<size_t>(VirtualStage(chunk))];
  }

  absl::Status ForInput(int chunk, int microbatch, const std::byte* activations,
                        const std::byte* d_output, std::byte* d_input) {
    const int here = VirtualStage(chunk);
    const plan::ChunkBytes bytes = BytesOf(chunk, microbatch);
    if (d_output != nullptr) {
      SHOAL_RETURN_IF_ERROR(Check(d_output, bytes.message, Content::kGradient, here + 1, microbatch,
                                  "its output's gradient"));
    }
    SHOAL_RETURN_IF_ERROR(CheckSaved(chunk, microbatch, activations));
    for (int unit = Range(chunk).first; unit < Range(chunk).end(); ++unit) {
      if (unit == head_) {
        SHOAL_RETURN_IF_ERROR(Touch(head_));
        SHOAL_RETURN_IF_ERROR(Contribute(head_, At(microbatch).gradient));
        if (options_.spec.tied_embeddings) {
          SHOAL_RETURN_IF_ERROR(Touch(0));
          if (sink_->Wants(0)) {
            SHOAL_RETURN_IF_ERROR(sink_->Accumulator(0).status());  // adds nothing
            SHOAL_RETURN_IF_ERROR(sink_->DoneTied());
          }
        }
      } else if (unit != 0) {
        SHOAL_RETURN_IF_ERROR(Touch(unit));
      }
    }
    if (d_input != nullptr) {
      Fill(d_input, bytes.message, Content::kGradient, here, microbatch);
    }
    return absl::OkStatus();
  }

  absl::Status ForWeights(int chunk, int microbatch, const std::byte* activations) {
    SHOAL_RETURN_IF_ERROR(CheckSaved(chunk, microbatch, activations));
    for (int unit = Range(chunk).end() - 1; unit >= Range(chunk).first; --unit) {
      if (unit != head_) {
        SHOAL_RETURN_IF_ERROR(Contribute(unit, At(microbatch).gradient));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Touch(int unit) {
    SHOAL_RETURN_IF_ERROR(source_->Get(unit).status());
    source_->Release(unit);
    const int adapters = AdaptersOf(unit);
    return adapters < 0 ? absl::OkStatus() : Touch(adapters);
  }

  int AdaptersOf(int unit) const {
    return unit > 0 && unit < head_ ? plan::AdapterUnit(options_.spec, unit - 1) : -1;
  }

  absl::Status Contribute(int unit, float gradient) {
    if (sink_->Wants(unit)) {
      SHOAL_ASSIGN_OR_RETURN(const std::span<float> accumulator, sink_->Accumulator(unit));
      for (float& element : accumulator) {
        element += gradient;
      }
    }
    SHOAL_RETURN_IF_ERROR(sink_->Done(unit));
    const int adapters = AdaptersOf(unit);
    return adapters < 0 ? absl::OkStatus() : Contribute(adapters, gradient);
  }

  uint64_t PatternOf(Content content, int virtual_stage, int microbatch) const {
    return Mixed(Mixed(At(microbatch).fingerprint, static_cast<uint64_t>(virtual_stage)),
                 static_cast<uint64_t>(content));
  }
  void Fill(std::byte* to, int64_t bytes, Content content, int virtual_stage, int microbatch) {
    const absl::Time begin = clock_.Now();
    FillPattern(to, bytes, PatternOf(content, virtual_stage, microbatch));
    on_patterns_ += clock_.Now() - begin;
  }
  absl::Status Check(const std::byte* from, int64_t bytes, Content content, int virtual_stage,
                     int microbatch, std::string_view what) {
    const absl::Time begin = clock_.Now();
    const int64_t at = FindDifference(from, bytes, PatternOf(content, virtual_stage, microbatch));
    on_patterns_ += clock_.Now() - begin;
    return at < 0 ? absl::OkStatus()
                  : DataLoss("{} is not what was made: it differs from byte {} of {} on", what, at,
                             bytes);
  }
  absl::Status CheckSaved(int chunk, int microbatch, const std::byte* activations) {
    return Check(activations, BytesOf(chunk, microbatch).activations, Content::kSaved,
                 VirtualStage(chunk), microbatch, "what its forward saved");
  }

  // Waits so long that `seconds` pass, including the time spent on patterns since the last call.
  void Take(double seconds) {
    device_.Run(std::max(absl::ZeroDuration(), absl::Seconds(seconds) - on_patterns_));
    on_patterns_ = absl::ZeroDuration();
  }

  const EmulatedStageOptions options_;
  const std::vector<plan::UnitSpec> units_;
  const int head_;
  Clock& clock_;
  EmulatedDevice device_;
  UnitSource* source_ = nullptr;
  GradientSink* sink_ = nullptr;
  std::vector<Microbatch> microbatches_;
  absl::Duration on_patterns_;
};

}  // namespace

std::unique_ptr<StageModel> MakeEmulatedStage(const EmulatedStageOptions& options, Clock& clock) {
  return std::make_unique<EmulatedStage>(options, clock);
}

}  // namespace shoal::worker
