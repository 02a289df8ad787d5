#include "worker/ops/cuda/cuda_ops.h"

#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/norm_partials.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/attention/attention.h"
#include "worker/ops/cuda/kernels/column_sum.h"
#include "worker/ops/cuda/kernels/cross_entropy.h"
#include "worker/ops/cuda/kernels/elementwise.h"
#include "worker/ops/cuda/kernels/embedding_backward.h"
#include "worker/ops/cuda/kernels/gated.h"
#include "worker/ops/cuda/kernels/rms_norm.h"
#include "worker/ops/cuda/kernels/rotary.h"
#include "worker/ops/cuda/kernels/rows.h"
#include "worker/ops/cuda/kernels/views.h"
#include "worker/ops/cuda/matmul/matmul.h"
#include "worker/ops/cuda/op_context.h"

namespace shoal::worker {
namespace cuda {
namespace {

// Each operator checks shapes as the CPU's does, skips empty work, and launches.
class CudaOps : public Ops {
 public:
  // `matmuls` uses the stream.
  CudaOps(Device& device, std::unique_ptr<Stream> stream, std::unique_ptr<Matmuls> matmuls,
          AttentionOptions attention)
      : stream_(std::move(stream)),
        context_(device, *stream_),
        matmuls_(std::move(matmuls)),
        attention_(device, *stream_, std::move(attention)) {}

  Stream& stream() override { return *stream_; }
  absl::Status Finish() override {
    context_.Keep("the compute stream", stream_->Synchronize());
    return context_.Take();
  }
  absl::Status Check() override {
    const cudaError_t error = cudaStreamQuery(context_.stream());
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // or the next launch reports it
    }
    context_.Keep("the compute stream", error == cudaErrorNotReady ? cudaSuccess : error);
    absl::Status failure = context_.Take();
    failure.Update(KeptFailure(*stream_));
    return failure;
  }

  void Matmul(const MatmulArgs& args) override {
    if (Begins("Matmul", args.c)) {
      Keep(matmuls_->Run(args));
    }
  }

  void EmbeddingForward(const int32_t* tokens, int64_t token_count, ConstMatrix table, float scale,
                        Matrix out) override {
    SHOAL_CHECK(token_count <= out.rows && table.columns == out.columns &&
                table.dtype == out.dtype);
    if (Begins("EmbeddingForward", out)) {
      Keep(cuda::GatherRows(context_.stream(), ToView(table), tokens, token_count, ToView(out)));
      if (scale != 1) {
        Keep(cuda::Scale(context_.stream(), scale, ToView(out)));
      }
    }
  }
  void EmbeddingBackward(const int32_t* tokens, int64_t token_count, ConstMatrix d_out, float scale,
                         Matrix d_table) override {
    SHOAL_CHECK(token_count <= d_out.rows && d_table.columns == d_out.columns &&
                d_table.dtype == DType::kF32);
    if (!Begins("EmbeddingBackward", d_out.Rows(0, token_count))) {
      return;
    }
    if (void* scratch = Scratch(EmbeddingBackwardScratch(token_count))) {
      Keep(cuda::EmbeddingBackward(context_.stream(), tokens, token_count, ToView(d_out), scale,
                                   ToView(d_table), scratch));
    }
  }

  void RmsNormForward(ConstMatrix x, const NormWeight& weight, double epsilon, ConstMatrix residual,
                      Matrix y, float* inverse_rms) override {
    SHOAL_CHECK(SameShape(x, y) && x.columns % weight.count == 0 && weight.dtype == x.dtype);
    SHOAL_CHECK(residual.data == nullptr || SameShape(residual, x));
    if (Begins("RmsNormForward", x)) {
      const int64_t parts = x.columns / weight.count;
      Keep(cuda::RmsNormForward(context_.stream(), {.x = PartsOf(ToView(x), parts),
                                                    .weight = weight.data,
                                                    .offset = weight.offset,
                                                    .epsilon = static_cast<float>(epsilon),
                                                    .residual = residual.data,
                                                    .residual_stride = residual.stride,
                                                    .y = PartsOf(ToView(y), parts),
                                                    .inverse_rms = inverse_rms,
                                                    .parts = parts}));
    }
  }
  void RmsNormBackward(ConstMatrix d_y, ConstMatrix x, const NormWeight& weight,
                       const float* inverse_rms, ConstMatrix residual, Matrix d_x,
                       Matrix d_weights) override {
    SHOAL_CHECK(SameShape(d_y, x) && SameShape(x, d_x) && x.columns % weight.count == 0 &&
                weight.dtype == x.dtype);
    SHOAL_CHECK(residual.data == nullptr || SameShape(residual, x));
    SHOAL_CHECK(d_weights.rows == plan::NormPartials(x.rows) && d_weights.columns == weight.count &&
                d_weights.dtype == DType::kF32 && d_weights.stride == weight.count);
    if (Begins("RmsNormBackward", x)) {
      const int64_t parts = x.columns / weight.count;
      Keep(cuda::RmsNormBackward(context_.stream(),
                                 {.d_y = PartsOf(ToView(d_y), parts),
                                  .x = PartsOf(ToView(x), parts),
                                  .weight = weight.data,
                                  .offset = weight.offset,
                                  .inverse_rms = inverse_rms,
                                  .residual = residual.data,
                                  .residual_stride = residual.stride,
                                  .d_x = PartsOf(ToView(d_x), parts),
                                  .d_weights = static_cast<float*>(d_weights.data),
                                  .rows_per_partial = plan::RowsPerNormPartial(x.rows) * parts,
                                  .parts = parts}));
    }
  }

  void RotaryForward(Matrix x, int64_t rotated_heads, int64_t head_dim,
                     const Rotation& rotation) override {
    const int64_t dims = rotation.dims_of(head_dim);
    SHOAL_CHECK(dims % 2 == 0 && dims <= head_dim && rotated_heads * head_dim <= x.columns);
    what_ = "RotaryForward";
    if (x.rows > 0 && rotated_heads * head_dim > 0 && context_.Begin(what_)) {
      Keep(Rotary(context_.stream(), {.x = ToView(x),
                                      .heads = rotated_heads,
                                      .head_dim = head_dim,
                                      .dims = dims,
                                      .positions = rotation.positions,
                                      .cosines = rotation.cosines,
                                      .sines = rotation.sines}));
    }
  }

  void AttentionForward(ConstMatrix qkv, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, Matrix out,
                        float* log_sum_exp) override {
    if (Begins("AttentionForward", qkv)) {
      Keep(attention_.Forward(qkv, shape, cu_seqlens, out, log_sum_exp));
    }
  }
  void AttentionBackward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                         const float* log_sum_exp, const AttentionShape& shape,
                         std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                         Matrix d_qkv) override {
    if (Begins("AttentionBackward", qkv)) {
      Keep(attention_.Backward(d_out, qkv, out, log_sum_exp, shape, cu_seqlens, rotation, d_qkv));
    }
  }
  void AttentionDecode(ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                       const AttentionShape& shape, Matrix out) override {
    if (Begins("AttentionDecode", q)) {
      Keep(attention_.Decode(q, keys, values, shape, out));
    }
  }

  void SwiGluForward(ConstMatrix gate_up, Matrix out) override {
    GatedForward("SwiGluForward", cuda::SwiGluForward, gate_up, out);
  }
  void SwiGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                      Matrix out) override {
    GatedBackward("SwiGluBackward", cuda::SwiGluBackward, d_out, gate_up, d_gate_up, out);
  }
  void GeGluForward(ConstMatrix gate_up, Matrix out) override {
    GatedForward("GeGluForward", cuda::GeGluForward, gate_up, out);
  }
  void GeGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                     Matrix out) override {
    GatedBackward("GeGluBackward", cuda::GeGluBackward, d_out, gate_up, d_gate_up, out);
  }

  void AddBias(ConstVector bias, Matrix y) override {
    SHOAL_CHECK(bias.count == y.columns && bias.dtype == y.dtype);
    if (Begins("AddBias", y)) {
      Keep(cuda::AddBias(context_.stream(), bias.data, ToView(y)));
    }
  }
  void Scale(float factor, Matrix x) override {
    if (Begins("Scale", x)) {
      Keep(cuda::Scale(context_.stream(), factor, ToView(x)));
    }
  }
  // Workers refuse jobs that need it.
  void Dropout(ConstMatrix /*x*/, const DropoutMask& /*mask*/, ConstMatrix /*residual*/,
               Matrix /*y*/) override {
    SHOAL_CHECK(false);
  }
  void AddColumnSums(ConstMatrix x, float* sums) override {
    if (!Begins("AddColumnSums", x)) {
      return;
    }
    const int64_t partials = ColumnSumPartials(ToElement(x.dtype), x.rows, x.columns);
    if (void* scratch = Scratch(partials * static_cast<int64_t>(sizeof(float)))) {
      Keep(cuda::AddColumnSums(context_.stream(), ToView(x), sums, static_cast<float*>(scratch)));
    }
  }

  void GatherRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) override {
    SHOAL_CHECK(count <= out.rows && in.columns == out.columns && in.dtype == out.dtype);
    if (Begins("GatherRows", out)) {
      Keep(cuda::GatherRows(context_.stream(), ToView(in), rows, count, ToView(out)));
    }
  }
  void ScatterRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) override {
    SHOAL_CHECK(count <= in.rows && in.columns == out.columns && in.dtype == out.dtype);
    if (Begins("ScatterRows", in.Rows(0, count))) {
      Keep(cuda::ScatterRows(context_.stream(), ToView(in), rows, count, ToView(out)));
    }
  }

  void SoftmaxCrossEntropy(Matrix logits, const LabelledRows& rows, float scale, float softcap,
                           Matrix d_logits, const LossOut& loss) override {
    SHOAL_CHECK(logits.dtype == DType::kF32 && rows.count <= logits.rows);
    SHOAL_CHECK(d_logits.data == nullptr ||
                (d_logits.rows == logits.rows && d_logits.columns == logits.columns));
    if (rows.count == 0) {
      if (d_logits.data != nullptr) {
        Zero(d_logits);
      }
      return;
    }
    if (!Begins("SoftmaxCrossEntropy", logits)) {
      return;
    }
    if (void* scratch = Scratch(CrossEntropyScratch(rows.count, logits.columns))) {
      Keep(cuda::SoftmaxCrossEntropy(context_.stream(),
                                     {.logits = ToView(ConstMatrix(logits)),
                                      .rows = rows,
                                      .scale = scale,
                                      .softcap = softcap,
                                      .d_logits = ToView(d_logits),
                                      .loss = loss,
                                      .shared_bytes = GpuOf(context_.device()).shared_bytes},
                                     scratch));
    }
  }

  void Convert(ConstMatrix in, Matrix out) override {
    SHOAL_CHECK(in.rows == out.rows && in.columns == out.columns);
    if (Begins("Convert", out)) {
      Keep(cuda::Convert(context_.stream(), ToView(in), ToView(out)));
    }
  }
  void Zero(Matrix out) override {
    if (Begins("Zero", out)) {
      Keep(cuda::Zero(context_.stream(), ToView(out)));
    }
  }

 private:
  template <typename Function>
  void GatedForward(std::string_view what, Function function, const ConstMatrix& gate_up,
                    const Matrix& out) {
    SHOAL_CHECK(gate_up.columns == 2 * out.columns && gate_up.rows == out.rows &&
                gate_up.dtype == out.dtype);
    if (Begins(what, out)) {
      Keep(function(context_.stream(), ToView(gate_up), ToView(out)));
    }
  }
  template <typename Function>
  void GatedBackward(std::string_view what, Function function, const ConstMatrix& d_out,
                     const ConstMatrix& gate_up, const Matrix& d_gate_up, const Matrix& out) {
    SHOAL_CHECK(gate_up.columns == 2 * d_out.columns && gate_up.rows == d_out.rows &&
                gate_up.dtype == d_out.dtype);
    SHOAL_CHECK(SameShape(gate_up, d_gate_up));
    SHOAL_CHECK(out.data == nullptr || SameShape(out, d_out));
    if (Begins(what, d_out)) {
      Keep(function(context_.stream(), ToView(d_out), ToView(gate_up), ToView(d_gate_up),
                    ToView(out)));
    }
  }
  // Whether there is work and the GPU can take it.
  bool Begins(std::string_view what, const ConstMatrix& work) {
    what_ = what;
    return !IsEmpty(work) && context_.Begin(what);
  }
  void Keep(cudaError_t error) { context_.Keep(what_, error); }
  void Keep(const absl::Status& status) { context_.Keep(what_, status); }
  void* Scratch(int64_t bytes) { return context_.Scratch(what_, bytes); }

  const std::unique_ptr<Stream> stream_;
  OpContext context_;
  const std::unique_ptr<Matmuls> matmuls_;
  Attention attention_;
  std::string_view what_;  // the operator in progress
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, const CudaOpsOptions& options) {
  if (!options.cublas_lt) {
    return MakeCudaOps(device, options, nullptr);
  }
  const absl::StatusOr<cuda::CublasLt> lt = cuda::LoadCublasLt();
  if (!lt.ok()) {
    LogInfo("{}: matrix products run on kernels of our own", Message(lt.status()));
  }
  return MakeCudaOps(device, options, lt.ok() ? &*lt : nullptr);
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(Device& device, const CudaOpsOptions& options,
                                                 const cuda::CublasLt* lt) {
  SHOAL_RETURN_IF_ERROR(MakeCurrent(device));
  std::unique_ptr<Stream> stream = device.NewStream();
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<cuda::Matmuls> matmuls,
      cuda::Matmuls::Create(device, *stream, lt,
                            {.tf32 = options.tf32,
                             .tune_after = options.deterministic ? 0 : options.tune_after,
                             .refused = options.refused_product}));
  cuda::AttentionOptions attention{.fused = nullptr,
                                   .deterministic = options.deterministic,
                                   .backward_pass = options.attention_backward};
  if (options.cudnn) {
    absl::StatusOr<std::unique_ptr<cuda::FusedAttention>> fused =
        cuda::MakeCudnnAttention(device, *stream);
    if (fused.ok()) {
      attention.fused = *std::move(fused);
    } else {
      LogInfo("{}: attention runs on kernels of our own", Message(fused.status()));
    }
  }
  return std::make_unique<cuda::CudaOps>(device, std::move(stream), std::move(matmuls),
                                         std::move(attention));
}

}  // namespace shoal::worker
