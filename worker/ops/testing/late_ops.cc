// Puts each operator on the stream with its arguments; it runs there on the CPU.
#include <memory>
#include <vector>

#include "worker/backend/cpu/cpu_device.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::worker {
namespace {

class LateOps final : public Ops {
 public:
  explicit LateOps(Device& device) : stream_(device.NewStream(StreamKind::kCompute)) {}

  Stream& stream() override { return *stream_; }
  absl::Status Finish() override {
    if (absl::Status status = stream_->Synchronize(); !status.ok()) {
      return status;
    }
    return Check();
  }
  absl::Status Check() override { return cpu_->Check(); }

  void Matmul(const MatmulArgs& args) override {
    Put([=, this] { cpu_->Matmul(args); });
  }
  void EmbeddingForward(const int32_t* tokens, int64_t token_count, ConstMatrix table, float scale,
                        Matrix out) override {
    Put([=, this] { cpu_->EmbeddingForward(tokens, token_count, table, scale, out); });
  }
  void EmbeddingBackward(const int32_t* tokens, int64_t token_count, ConstMatrix d_out, float scale,
                         Matrix d_table) override {
    Put([=, this] { cpu_->EmbeddingBackward(tokens, token_count, d_out, scale, d_table); });
  }
  void RmsNormForward(ConstMatrix x, const NormWeight& weight, double epsilon, ConstMatrix residual,
                      Matrix y, float* inverse_rms) override {
    Put([=, this] { cpu_->RmsNormForward(x, weight, epsilon, residual, y, inverse_rms); });
  }
  void RmsNormBackward(ConstMatrix d_y, ConstMatrix x, const NormWeight& weight,
                       const float* inverse_rms, ConstMatrix residual, Matrix d_x,
                       Matrix d_weights) override {
    Put([=, this] {
      cpu_->RmsNormBackward(d_y, x, weight, inverse_rms, residual, d_x, d_weights);
    });
  }
  void RotaryForward(Matrix x, int64_t rotated_heads, int64_t head_dim,
                     const Rotation& rotation) override {
    Put([=, this] { cpu_->RotaryForward(x, rotated_heads, head_dim, rotation); });
  }
  void AttentionForward(ConstMatrix qkv, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, Matrix out,
                        float* log_sum_exp) override {
    Put([=, this, sequences = std::vector<int32_t>(cu_seqlens.begin(), cu_seqlens.end())] {
      cpu_->AttentionForward(qkv, shape, sequences, out, log_sum_exp);
    });
  }
  void AttentionBackward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                         const float* log_sum_exp, const AttentionShape& shape,
                         std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                         Matrix d_qkv) override {
    Put([=, this, sequences = std::vector<int32_t>(cu_seqlens.begin(), cu_seqlens.end())] {
      cpu_->AttentionBackward(d_out, qkv, out, log_sum_exp, shape, sequences, rotation, d_qkv);
    });
  }
  void AttentionDecode(ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                       const AttentionShape& shape, Matrix out) override {
    Put([=, this] { cpu_->AttentionDecode(q, keys, values, shape, out); });
  }
  void SwiGluForward(ConstMatrix gate_up, Matrix out) override {
    Put([=, this] { cpu_->SwiGluForward(gate_up, out); });
  }
  void SwiGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                      Matrix out) override {
    Put([=, this] { cpu_->SwiGluBackward(d_out, gate_up, d_gate_up, out); });
  }
  void GeGluForward(ConstMatrix gate_up, Matrix out) override {
    Put([=, this] { cpu_->GeGluForward(gate_up, out); });
  }
  void GeGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                     Matrix out) override {
    Put([=, this] { cpu_->GeGluBackward(d_out, gate_up, d_gate_up, out); });
  }
  void AddBias(ConstVector bias, Matrix y) override {
    Put([=, this] { cpu_->AddBias(bias, y); });
  }
  void Scale(float factor, Matrix x) override {
    Put([=, this] { cpu_->Scale(factor, x); });
  }
  void Dropout(ConstMatrix x, const DropoutMask& mask, ConstMatrix residual, Matrix y) override {
    const std::vector<DropoutRow> rows(mask.rows.begin(), mask.rows.end());
    Put([=, this] {
      DropoutMask kept = mask;
      kept.rows = rows;
      cpu_->Dropout(x, kept, residual, y);
    });
  }
  void AddColumnSums(ConstMatrix x, float* sums) override {
    Put([=, this] { cpu_->AddColumnSums(x, sums); });
  }
  void GatherRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) override {
    Put([=, this] { cpu_->GatherRows(in, rows, count, out); });
  }
  void ScatterRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) override {
    Put([=, this] { cpu_->ScatterRows(in, rows, count, out); });
  }
  void SoftmaxCrossEntropy(Matrix logits, const LabelledRows& rows, float scale, float softcap,
                           Matrix d_logits, const LossOut& loss) override {
    Put([=, this] { cpu_->SoftmaxCrossEntropy(logits, rows, scale, softcap, d_logits, loss); });
  }
  void Convert(ConstMatrix in, Matrix out) override {
    Put([=, this] { cpu_->Convert(in, out); });
  }
  void Zero(Matrix out) override {
    Put([=, this] { cpu_->Zero(out); });
  }

 private:
  void Put(std::function<void()> work) { LateDevice::Put(*stream_, std::move(work)); }

  const std::unique_ptr<Device> cpu_device_ = MakeCpuDevice();
  const std::unique_ptr<Ops> cpu_ = MakeCpuOps(*cpu_device_, /*threads=*/1);
  const std::unique_ptr<Stream> stream_;
};

}  // namespace

ComputeDevice MakeLateComputeDevice(uint64_t seed) {
  ComputeDevice compute_device;
  compute_device.device = std::make_unique<LateDevice>(seed);
  compute_device.ops = std::make_unique<LateOps>(*compute_device.device);
  return compute_device;
}

}  // namespace shoal::worker
