// Operators that record their calls and how long each takes, besides the bytes and operations that
// it needs at least (floors.h): shows where a step's time goes.
//
// Passes everything on to the operators it owns. While recording, puts an event after each operator
// on the stream, so an operator's time runs from the one before and includes other work put in
// between (zeros, copies) and waiting for the host. Threads: as Ops.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu_check/parts/floors.h"
#include "worker/ops/ops.h"

namespace shoal::bench {

// All calls of one kind.
struct OpProfile {
  std::string name;
  int64_t calls = 0;
  Cost cost;
  double seconds = 0;
};

class ProfiledOps final : public worker::Ops {
 public:
  explicit ProfiledOps(std::unique_ptr<worker::Ops> inner) : inner_(std::move(inner)) {}

  void Start();
  // Waits, and returns the calls since Start, longest first.
  absl::StatusOr<std::vector<OpProfile>> Stop();

  worker::Stream& stream() override { return inner_->stream(); }
  absl::Status Finish() override { return inner_->Finish(); }
  absl::Status Check() override { return inner_->Check(); }

  void Matmul(const worker::MatmulArgs& args) override;
  void EmbeddingForward(const int32_t* tokens, int64_t token_count, worker::ConstMatrix table,
                        float scale, worker::Matrix out) override;
  void EmbeddingBackward(const int32_t* tokens, int64_t token_count, worker::ConstMatrix d_out,
                         float scale, worker::Matrix d_table) override;
  void RmsNormForward(worker::ConstMatrix x, const worker::NormWeight& weight, double epsilon,
                      worker::ConstMatrix residual, worker::Matrix y, float* inverse_rms) override;
  void RmsNormBackward(worker::ConstMatrix d_y, worker::ConstMatrix x,
                       const worker::NormWeight& weight, const float* inverse_rms,
                       worker::ConstMatrix residual, worker::Matrix d_x,
                       worker::Matrix d_weights) override;
  void RotaryForward(worker::Matrix x, int64_t rotated_heads, int64_t head_dim,
                     const worker::Rotation& rotation) override;
  void AttentionForward(worker::ConstMatrix qkv, const worker::AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, worker::Matrix out,
                        float* log_sum_exp) override;
  void AttentionBackward(worker::ConstMatrix d_out, worker::ConstMatrix qkv,
                         worker::ConstMatrix out, const float* log_sum_exp,
                         const worker::AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                         const worker::Rotation& rotation, worker::Matrix d_qkv) override;
  void AttentionDecode(worker::ConstMatrix q, worker::ConstMatrix keys, worker::ConstMatrix values,
                       const worker::AttentionShape& shape, worker::Matrix out) override;
  void SwiGluForward(worker::ConstMatrix gate_up, worker::Matrix out) override;
  void SwiGluBackward(worker::ConstMatrix d_out, worker::ConstMatrix gate_up,
                      worker::Matrix d_gate_up, worker::Matrix out) override;
  void GeGluForward(worker::ConstMatrix gate_up, worker::Matrix out) override;
  void GeGluBackward(worker::ConstMatrix d_out, worker::ConstMatrix gate_up,
                     worker::Matrix d_gate_up, worker::Matrix out) override;
  void AddBias(worker::ConstVector bias, worker::Matrix y) override;
  void Scale(float factor, worker::Matrix x) override;
  void Dropout(worker::ConstMatrix x, const worker::DropoutMask& mask, worker::ConstMatrix residual,
               worker::Matrix y) override;
  void AddColumnSums(worker::ConstMatrix x, float* sums) override;
  void GatherRows(worker::ConstMatrix in, const int32_t* rows, int64_t count,
                  worker::Matrix out) override;
  void ScatterRows(worker::ConstMatrix in, const int32_t* rows, int64_t count,
                   worker::Matrix out) override;
  void SoftmaxCrossEntropy(worker::Matrix logits, const worker::LabelledRows& rows, float scale,
                           float softcap, worker::Matrix d_logits,
                           const worker::LossOut& loss) override;
  void Convert(worker::ConstMatrix in, worker::Matrix out) override;
  void Zero(worker::Matrix out) override;

 private:
  struct Noted {
    size_t profile;
    std::unique_ptr<worker::Event> done;
  };
  // Call after putting an operator on the stream.
  void Note(std::string_view name, const Cost& cost);

  const std::unique_ptr<worker::Ops> inner_;
  std::unique_ptr<worker::Event> begin_;  // null: not recording
  std::vector<OpProfile> profiles_;
  std::vector<Noted> noted_;
};

}  // namespace shoal::bench
