#include "bench/gpu_check/parts/profiled_ops.h"

#include <algorithm>

#include "absl/time/time.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

using worker::ConstMatrix;
using worker::ConstVector;
using worker::Matrix;
using worker::NormWeight;

int64_t BytesOf(const ConstMatrix& m) { return m.rows * m.columns * SizeOf(m.dtype); }

// Bytes of matrices that are each read or written once.
template <typename... Matrices>
Cost Touching(const Matrices&... matrices) {
  return BytesCost((BytesOf(ConstMatrix(matrices)) + ...));
}

double SquaredTokens(std::span<const int32_t> cu_seqlens) {
  double squared = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const double tokens = cu_seqlens[s + 1] - cu_seqlens[s];
    squared += tokens * tokens;
  }
  return squared;
}

std::string_view NameOf(const worker::MatmulArgs& args) {
  if (args.transpose_a) {
    return args.accumulate ? "Matmul, weight gradient added" : "Matmul, weight gradient";
  }
  return args.transpose_b ? "Matmul, forward" : "Matmul, input gradient";
}

}  // namespace

void ProfiledOps::Start() {
  profiles_.clear();
  noted_.clear();
  begin_ = stream().Record();
}

absl::StatusOr<std::vector<OpProfile>> ProfiledOps::Stop() {
  SHOAL_RETURN_IF_ERROR(Finish());
  const worker::Event* before = begin_.get();
  for (const Noted& noted : noted_) {
    profiles_[noted.profile].seconds += absl::ToDoubleSeconds(noted.done->at() - before->at());
    before = noted.done.get();
  }
  noted_.clear();
  begin_.reset();
  std::ranges::sort(profiles_, std::ranges::greater(), &OpProfile::seconds);
  return std::exchange(profiles_, {});
}

void ProfiledOps::Note(std::string_view name, const Cost& cost) {
  if (begin_ == nullptr) {
    return;
  }
  auto profile = std::ranges::find(profiles_, name, &OpProfile::name);
  if (profile == profiles_.end()) {
    profile = profiles_.insert(profile, {.name = std::string(name)});
  }
  ++profile->calls;
  profile->cost.bytes += cost.bytes;
  profile->cost.flops += cost.flops;
  noted_.push_back({static_cast<size_t>(profile - profiles_.begin()), stream().Record()});
}

void ProfiledOps::Matmul(const worker::MatmulArgs& args) {
  inner_->Matmul(args);
  Cost cost = args.accumulate ? Touching(args.a, args.b, args.c, args.c)
                              : Touching(args.a, args.b, args.c, args.addend);
  const int64_t k = args.transpose_a ? args.a.rows : args.a.columns;
  cost.flops = 2.0 * static_cast<double>(args.c.rows) * static_cast<double>(args.c.columns) *
               static_cast<double>(k);
  Note(NameOf(args), cost);
}

void ProfiledOps::EmbeddingForward(const int32_t* tokens, int64_t token_count, ConstMatrix table,
                                   float scale, Matrix out) {
  inner_->EmbeddingForward(tokens, token_count, table, scale, out);
  Note("EmbeddingForward", Touching(out, out));
}

void ProfiledOps::EmbeddingBackward(const int32_t* tokens, int64_t token_count, ConstMatrix d_out,
                                    float scale, Matrix d_table) {
  inner_->EmbeddingBackward(tokens, token_count, d_out, scale, d_table);
  // Reads and writes one row of the table per token.
  const ConstMatrix sums{d_table.data, d_table.dtype, d_out.rows, d_table.columns, d_table.stride};
  Note("EmbeddingBackward", Touching(d_out, sums, sums));
}

void ProfiledOps::RmsNormForward(ConstMatrix x, const NormWeight& weight, double epsilon,
                                 ConstMatrix residual, Matrix y, float* inverse_rms) {
  inner_->RmsNormForward(x, weight, epsilon, residual, y, inverse_rms);
  Note("RmsNormForward", Touching(x, residual, y));
}

void ProfiledOps::RmsNormBackward(ConstMatrix d_y, ConstMatrix x, const NormWeight& weight,
                                  const float* inverse_rms, ConstMatrix residual, Matrix d_x,
                                  Matrix d_weights) {
  inner_->RmsNormBackward(d_y, x, weight, inverse_rms, residual, d_x, d_weights);
  Note("RmsNormBackward", Touching(d_y, x, residual, d_x, d_weights));
}

void ProfiledOps::RotaryForward(Matrix x, int64_t rotated_heads, int64_t head_dim,
                                const worker::Rotation& rotation) {
  inner_->RotaryForward(x, rotated_heads, head_dim, rotation);
  const Matrix turned = x.Columns(0, rotated_heads * head_dim);
  Note("RotaryForward", Touching(turned, turned));
}

void ProfiledOps::AttentionForward(ConstMatrix qkv, const worker::AttentionShape& shape,
                                   std::span<const int32_t> cu_seqlens, Matrix out,
                                   float* log_sum_exp) {
  inner_->AttentionForward(qkv, shape, cu_seqlens, out, log_sum_exp);
  Note("AttentionForward", AttentionForwardCost(shape, qkv.rows, SquaredTokens(cu_seqlens)));
}

void ProfiledOps::AttentionBackward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                                    const float* log_sum_exp, const worker::AttentionShape& shape,
                                    std::span<const int32_t> cu_seqlens,
                                    const worker::Rotation& rotation, Matrix d_qkv) {
  inner_->AttentionBackward(d_out, qkv, out, log_sum_exp, shape, cu_seqlens, rotation, d_qkv);
  Note("AttentionBackward", AttentionBackwardCost(shape, qkv.rows, SquaredTokens(cu_seqlens)));
}

void ProfiledOps::AttentionDecode(ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                                  const worker::AttentionShape& shape, Matrix out) {
  inner_->AttentionDecode(q, keys, values, shape, out);
  Note("AttentionDecode", Touching(q, keys, values, out));
}

void ProfiledOps::SwiGluForward(ConstMatrix gate_up, Matrix out) {
  inner_->SwiGluForward(gate_up, out);
  Note("SwiGluForward", Touching(gate_up, out));
}

void ProfiledOps::SwiGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                                 Matrix out) {
  inner_->SwiGluBackward(d_out, gate_up, d_gate_up, out);
  Note("SwiGluBackward", Touching(d_out, gate_up, d_gate_up, out));
}

void ProfiledOps::GeGluForward(ConstMatrix gate_up, Matrix out) {
  inner_->GeGluForward(gate_up, out);
  Note("GeGluForward", Touching(gate_up, out));
}

void ProfiledOps::GeGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                                Matrix out) {
  inner_->GeGluBackward(d_out, gate_up, d_gate_up, out);
  Note("GeGluBackward", Touching(d_out, gate_up, d_gate_up, out));
}

void ProfiledOps::AddBias(ConstVector bias, Matrix y) {
  inner_->AddBias(bias, y);
  Note("AddBias", Touching(y, y));
}

void ProfiledOps::Scale(float factor, Matrix x) {
  inner_->Scale(factor, x);
  Note("Scale", Touching(x, x));
}

void ProfiledOps::Dropout(ConstMatrix x, const worker::DropoutMask& mask, ConstMatrix residual,
                          Matrix y) {
  inner_->Dropout(x, mask, residual, y);
  Note("Dropout", Touching(x, residual, y));
}

void ProfiledOps::AddColumnSums(ConstMatrix x, float* sums) {
  inner_->AddColumnSums(x, sums);
  Note("AddColumnSums", Touching(x));
}

void ProfiledOps::GatherRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) {
  inner_->GatherRows(in, rows, count, out);
  Note("GatherRows", Touching(out, out));
}

void ProfiledOps::ScatterRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) {
  inner_->ScatterRows(in, rows, count, out);
  Note("ScatterRows", Touching(in, in));
}

void ProfiledOps::SoftmaxCrossEntropy(Matrix logits, const worker::LabelledRows& rows, float scale,
                                      float softcap, Matrix d_logits, const worker::LossOut& loss) {
  inner_->SoftmaxCrossEntropy(logits, rows, scale, softcap, d_logits, loss);
  Note("SoftmaxCrossEntropy", IsReadTwice(logits.columns) && d_logits.data != nullptr
                                  ? Touching(logits, logits, d_logits)
                                  : Touching(logits, d_logits));
}

void ProfiledOps::Convert(ConstMatrix in, Matrix out) {
  inner_->Convert(in, out);
  Note("Convert", Touching(in, out));
}

void ProfiledOps::Zero(Matrix out) {
  inner_->Zero(out);
  Note("Zero", Touching(out));
}

}  // namespace shoal::bench
