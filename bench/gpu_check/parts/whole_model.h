// A whole model on one stage, with weights and gradients resident, run by the pipeline's runtime
// with any part of its activations offloaded.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/base/resident_units.h"
#include "core/base/time_kind_clock.h"
#include "core/plan/pipeline/chosen_schedule.h"
#include "worker/model/transformer_stage.h"
#include "worker/pipeline/stage_runner.h"

namespace shoal::bench {

// Pinned host memory in one piece, for one user at a time. Allocated once for all models: pinning
// tens of gigabytes takes as long as all of their steps.
class HostPiece final : public worker::Memory {
 public:
  // Allocates as much of `bytes` as it can, by halves down to an eighth; 0: none.
  static absl::StatusOr<std::unique_ptr<HostPiece>> Make(PartRun& run, int64_t bytes);

  std::string_view name() const override { return memory_->name(); }
  absl::StatusOr<worker::Buffer> Allocate(int64_t bytes) override;
  int64_t budget_bytes() const override { return buffer_.bytes(); }
  int64_t allocated_bytes() const override { return taken_; }
  int64_t peak_bytes() const override { return buffer_.bytes(); }

 private:
  HostPiece() = default;
  void Free(std::byte*, int64_t) override { taken_ = 0; }

  worker::ComputeDevice compute_device_;
  std::unique_ptr<worker::Memory> memory_;
  worker::Buffer buffer_;
  int64_t taken_ = 0;
};

class WholeModel {
 public:
  static constexpr plan::Recompute kRecompute = plan::Recompute::kLight;

  // `host` must outlive it.
  static absl::StatusOr<std::unique_ptr<WholeModel>> Make(PartRun& run, const plan::ModelSpec& spec,
                                                          int chunks, worker::Memory& host);

  // Offloads as many of the first chunks as `host_bytes` hold.
  absl::Status MakeSchedule(const std::vector<worker::PackedBatch>& batches, int64_t host_bytes,
                            const plan::PipelinePace& pace);

  struct Step {
    double seconds = 0;
    double loss = 0;  // sum over all targets
    worker::StageReport report;
  };
  // Runs the latest schedule, on gradients of zero.
  absl::StatusOr<Step> Run(const std::vector<worker::PackedBatch>& batches);
  absl::StatusOr<std::vector<float>> Gradient(int unit) { return gradients_->Read(unit); }

  // Seconds that all copies of the step just run would take if everything were offloaded at the
  // measured rate.
  double CopySeconds(const worker::StageReport& report) const;
  // "10 of 12 chunks, 20.1 of 24.0 GiB": the share of activations that it moved to the host.
  std::string Moved(const worker::StageReport& report) const;

  // The planner's figures for the latest schedule: its k, and the most bytes of activations on
  // device and host.
  struct Planned {
    double ratio = 0;
    int64_t device_bytes = 0;
    int64_t host_bytes = 0;
  };
  absl::StatusOr<Planned> PlannedOf(const std::vector<worker::PackedBatch>& batches,
                                    const plan::PipelinePace& pace) const;

 private:
  explicit WholeModel(const plan::ModelSpec& spec);
  int Offloaded(const std::vector<worker::PackedBatch>& batches, int64_t host_bytes) const;
  double BytesOf(int chunk, int microbatch) const;
  double AllBytes() const;

  const plan::ModelSpec spec_;
  plan::PipelineChoice choice_;
  plan::Schedule schedule_;
  TimeKindClock time_kinds_;
  worker::Transformer* model_ = nullptr;
  std::unique_ptr<worker::TransformerStage> stage_;
  std::unique_ptr<ResidentWeights> weights_;
  std::unique_ptr<ResidentGradients> gradients_;
  std::unique_ptr<worker::StageRunner> runner_;
  int64_t steps_ = 0;
};

}  // namespace shoal::bench
