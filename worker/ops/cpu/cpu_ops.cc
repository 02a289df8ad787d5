#include "worker/ops/cpu/cpu_ops.h"

#include "worker/ops/cpu/cpu_kernels.h"

namespace shoal::worker {

namespace {

class CpuOps : public Ops {
 public:
  CpuOps(Device& device, int threads) : pool_(threads), stream_(device.NewStream()) {}

  Stream& stream() override { return *stream_; }
  absl::Status Finish() override { return gemm_.TakeStatus(); }
  absl::Status Check() override { return Finish(); }

  void Matmul(const MatmulArgs& args) override { cpu::Matmul(context_, args); }

  void EmbeddingForward(const int32_t* tokens, int64_t token_count, ConstMatrix table, float scale,
                        Matrix out) override {
    cpu::EmbeddingForward(context_, tokens, token_count, table, scale, out);
  }
  void EmbeddingBackward(const int32_t* tokens, int64_t token_count, ConstMatrix d_out, float scale,
                         Matrix d_table) override {
    cpu::EmbeddingBackward(context_, tokens, token_count, d_out, scale, d_table);
  }

  void RmsNormForward(ConstMatrix x, const NormWeight& weight, double epsilon, ConstMatrix residual,
                      Matrix y, float* inverse_rms) override {
    cpu::RmsNormForward(context_, x, weight, epsilon, residual, y, inverse_rms);
  }
  void RmsNormBackward(ConstMatrix d_y, ConstMatrix x, const NormWeight& weight,
                       const float* inverse_rms, ConstMatrix residual, Matrix d_x,
                       Matrix d_weights) override {
    cpu::RmsNormBackward(context_, d_y, x, weight, inverse_rms, residual, d_x, d_weights);
  }

  void RotaryForward(Matrix x, int64_t rotated_heads, int64_t head_dim,
                     const Rotation& rotation) override {
    cpu::RotaryForward(context_, x, rotated_heads, head_dim, rotation);
  }

  void AttentionForward(ConstMatrix qkv, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, Matrix out,
                        float* log_sum_exp) override {
    cpu::AttentionForward(context_, qkv, shape, cu_seqlens, out, log_sum_exp);
  }
  void AttentionBackward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                         const float* log_sum_exp, const AttentionShape& shape,
                         std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                         Matrix d_qkv) override {
    cpu::AttentionBackward(context_, d_out, qkv, out, log_sum_exp, shape, cu_seqlens, d_qkv);
    if (rotation.positions != nullptr) {
      cpu::RotaryBackward(context_, d_qkv, shape.heads + shape.kv_heads, shape.head_dim, rotation);
    }
  }
  void AttentionDecode(ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                       const AttentionShape& shape, Matrix out) override {
    cpu::AttentionDecode(context_, q, keys, values, shape, out);
  }

  void SwiGluForward(ConstMatrix gate_up, Matrix out) override {
    cpu::SwiGluForward(context_, gate_up, out);
  }
  void SwiGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                      Matrix out) override {
    cpu::SwiGluBackward(context_, d_out, gate_up, d_gate_up, out);
  }
  void GeGluForward(ConstMatrix gate_up, Matrix out) override {
    cpu::GeGluForward(context_, gate_up, out);
  }
  void GeGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                     Matrix out) override {
    cpu::GeGluBackward(context_, d_out, gate_up, d_gate_up, out);
  }

  void AddBias(ConstVector bias, Matrix y) override { cpu::AddBias(context_, bias, y); }
  void Scale(float factor, Matrix x) override { cpu::Scale(context_, factor, x); }
  void Dropout(ConstMatrix x, const DropoutMask& mask, ConstMatrix residual, Matrix y) override {
    cpu::Dropout(context_, x, mask, residual, y);
  }
  void AddColumnSums(ConstMatrix x, float* sums) override { cpu::AddColumnSums(context_, x, sums); }

  void GatherRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) override {
    cpu::GatherRows(context_, in, rows, count, out);
  }
  void ScatterRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) override {
    cpu::ScatterRows(context_, in, rows, count, out);
  }

  void SoftmaxCrossEntropy(Matrix logits, const LabelledRows& rows, float scale, float softcap,
                           Matrix d_logits, const LossOut& loss) override {
    cpu::SoftmaxCrossEntropy(context_, logits, rows, scale, softcap, d_logits, loss);
  }

  void Convert(ConstMatrix in, Matrix out) override { cpu::Convert(context_, in, out); }
  void Zero(Matrix out) override { cpu::Zero(context_, out); }

 private:
  ThreadPool pool_;
  cpu::GemmCache gemm_;
  cpu::Context context_{pool_, gemm_};
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::unique_ptr<Ops> MakeCpuOps(Device& device, int threads) {
  return std::make_unique<CpuOps>(device, threads);
}

}  // namespace shoal::worker
