#include "bench/gpu_check/parts/kernel_cases.h"

#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/plan/memory/loss_chunk.h"
#include "core/plan/memory/norm_partials.h"
#include "fmt/format.h"
#include "worker/loss/linear_cross_entropy.h"
#include "worker/model/block.h"

namespace shoal::bench {
namespace {

using worker::AttentionShape;
using worker::ConstMatrix;
using worker::ConstVector;
using worker::Matrix;
using worker::Ops;

constexpr DType kType = DType::kBF16;
constexpr double kEpsilon = 1e-6;

// Copies of one matrix for calls to alternate between: together larger than any cache.
using Turns = std::array<Matrix, 3>;
const Matrix& At(const Turns& turns, int64_t number) {
  return turns[static_cast<size_t>(number) % turns.size()];
}

absl::StatusOr<Turns> MakeTurns(DeviceData& data, int64_t rows, int64_t columns) {
  Turns turns;
  for (Matrix& matrix : turns) {
    SHOAL_ASSIGN_OR_RETURN(matrix, data.Normal(kType, rows, columns));
  }
  return turns;
}

absl::StatusOr<float*> Floats(DeviceData& data, int64_t count, double deviation = 1.0) {
  SHOAL_ASSIGN_OR_RETURN(const Matrix matrix, data.Normal(DType::kF32, 1, count, deviation));
  return matrix.row<float>(0);
}

std::string Size(int64_t rows, int64_t columns) { return fmt::format("{} x {}", rows, columns); }

// `count` sequences of equal length.
std::vector<int32_t> EqualSequences(int64_t rows, int64_t count) {
  std::vector<int32_t> begins;
  for (int64_t s = 0; s <= count; ++s) {
    begins.push_back(static_cast<int32_t>(rows * s / count));
  }
  return begins;
}

std::vector<int32_t> RandomIntegers(int64_t count, int64_t below) {
  Random random(7);
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int32_t& value : values) {
    value = static_cast<int32_t>(random.Below(static_cast<uint64_t>(below)));
  }
  return values;
}

// Uploads `function` of each argument.
absl::StatusOr<const float*> Uploaded(DeviceData& data, const std::vector<int32_t>& arguments,
                                      float (*function)(int32_t)) {
  std::vector<int32_t> bits;
  for (const int32_t argument : arguments) {
    bits.push_back(std::bit_cast<int32_t>(function(argument)));
  }
  SHOAL_ASSIGN_OR_RETURN(const int32_t* const uploaded, data.Integers(bits));
  return reinterpret_cast<const float*>(uploaded);
}

}  // namespace

absl::StatusOr<std::vector<KernelCase>> MakeMatrixCases(Ops& ops, DeviceData& data,
                                                        const plan::ModelSpec& spec, int64_t rows) {
  struct Product {
    const char* name;
    int64_t in, out;
    bool residual = false;  // added in the forward pass
  };
  const Product products[] = {{"qkv", spec.hidden, spec.attention().qkv_size()},
                              {"attention's output", spec.attention().q_size(), spec.hidden, true},
                              {"gate and up", spec.hidden, 2 * spec.mlp().intermediate},
                              {"down", spec.mlp().intermediate, spec.hidden, true}};
  std::vector<KernelCase> cases;
  for (const Product& p : products) {
    SHOAL_ASSIGN_OR_RETURN(const Matrix x, data.Normal(kType, rows, p.in));
    SHOAL_ASSIGN_OR_RETURN(const Matrix y, data.Normal(kType, rows, p.out));
    SHOAL_ASSIGN_OR_RETURN(const Matrix weight, data.Normal(kType, p.out, p.in, 0.02));
    SHOAL_ASSIGN_OR_RETURN(const Matrix d_weight, data.Normal(DType::kF32, p.out, p.in, 0.02));
    const auto shape = [](int64_t m, int64_t n, int64_t k) {
      return fmt::format("{} x {} x {}", m, n, k);
    };
    Matrix residual;
    Cost forward = MatmulCost(rows, p.out, p.in, false);
    if (p.residual) {
      SHOAL_ASSIGN_OR_RETURN(residual, data.Normal(kType, rows, p.out));
      forward.bytes += ElementwiseCost(rows * p.out, 1, 0).bytes;
    }
    cases.push_back({fmt::format("Matmul, {}, forward", p.name), shape(rows, p.out, p.in), forward,
                     [&ops, x, y, weight, residual](int64_t) {
                       ops.Matmul(
                           {.a = x, .b = weight, .c = y, .transpose_b = true, .addend = residual});
                     }});
    cases.push_back({fmt::format("Matmul, {}, input gradient", p.name), shape(rows, p.in, p.out),
                     MatmulCost(rows, p.in, p.out, false),
                     [&ops, x, y, weight](int64_t) { ops.Matmul({.a = y, .b = weight, .c = x}); }});
    // As in a step, the first contribution overwrites, and only then is the product tuned.
    ops.Matmul({.a = y, .b = x, .c = d_weight, .transpose_a = true});
    cases.push_back(
        {fmt::format("Matmul, {}, weight gradient", p.name), shape(p.out, p.in, rows),
         MatmulCost(p.out, p.in, rows, true), [&ops, x, y, d_weight](int64_t) {
           ops.Matmul({.a = y, .b = x, .c = d_weight, .transpose_a = true, .accumulate = true});
         }});
  }
  return cases;
}

std::string AttentionSize::Name() const {
  return fmt::format("{} x {} tokens, {} / {} heads of {}", sequences, tokens / sequences,
                     shape.heads, shape.kv_heads, shape.head_dim);
}

std::vector<AttentionSize> AttentionSizes(const PartSizes& sizes) {
  const std::optional<plan::ModelSpec> spec = plan::NamedShape(sizes.kernel_shape);
  const std::optional<plan::ModelSpec> small = plan::NamedShape(sizes.small_head_shape);
  if (!spec || !small) {
    return {};
  }
  const int64_t rows = sizes.kernel_rows;
  return {{worker::ShapeOf(spec->attention()), rows, 1},
          {worker::ShapeOf(spec->attention()), rows, 8},
          {worker::ShapeOf(spec->attention()), 4 * rows, 1},
          {worker::ShapeOf(small->attention()), 2 * rows, 16}};
}

absl::StatusOr<std::vector<KernelCase>> MakeAttentionCases(Ops& ops, DeviceData& data,
                                                           const AttentionSize& size) {
  const AttentionShape& shape = size.shape;
  const int64_t rows = size.tokens;
  SHOAL_ASSIGN_OR_RETURN(const Matrix qkv, data.Normal(kType, rows, shape.qkv_size()));
  SHOAL_ASSIGN_OR_RETURN(const Matrix d_qkv, data.Normal(kType, rows, shape.qkv_size()));
  SHOAL_ASSIGN_OR_RETURN(const Matrix out, data.Normal(kType, rows, shape.q_size()));
  SHOAL_ASSIGN_OR_RETURN(const Matrix d_out, data.Normal(kType, rows, shape.q_size()));
  SHOAL_ASSIGN_OR_RETURN(float* const log_sum_exp, Floats(data, rows * shape.heads));
  const std::vector<int32_t> begins = EqualSequences(rows, size.sequences);
  const double length = static_cast<double>(rows) / static_cast<double>(size.sequences);
  const double squared = static_cast<double>(size.sequences) * length * length;
  // Backward follows a forward of the same sequences, whose results it reads.
  return std::vector<KernelCase>{
      {"AttentionForward", size.Name(), AttentionForwardCost(shape, rows, squared),
       [&ops, qkv, shape, begins, out, log_sum_exp](int64_t) {
         ops.AttentionForward(qkv, shape, begins, out, log_sum_exp);
       },
       size.Name()},
      {"AttentionBackward", size.Name(), AttentionBackwardCost(shape, rows, squared),
       [&ops, d_out, qkv, out, log_sum_exp, shape, begins, d_qkv](int64_t) {
         ops.AttentionBackward(d_out, qkv, out, log_sum_exp, shape, begins, {}, d_qkv);
       },
       size.Name()}};
}

absl::StatusOr<std::vector<KernelCase>> MakeBlockCases(Ops& ops, DeviceData& data,
                                                       const plan::ModelSpec& spec, int64_t rows) {
  const int64_t hidden = spec.hidden, intermediate = spec.mlp().intermediate;
  const AttentionShape shape = worker::ShapeOf(spec.attention());
  SHOAL_ASSIGN_OR_RETURN(const Turns x, MakeTurns(data, rows, hidden));
  SHOAL_ASSIGN_OR_RETURN(const Turns y, MakeTurns(data, rows, hidden));
  SHOAL_ASSIGN_OR_RETURN(const Turns z, MakeTurns(data, rows, hidden));
  SHOAL_ASSIGN_OR_RETURN(const Turns w, MakeTurns(data, rows, hidden));
  SHOAL_ASSIGN_OR_RETURN(const Turns qkv, MakeTurns(data, rows, shape.qkv_size()));
  SHOAL_ASSIGN_OR_RETURN(const Matrix gate_up, data.Normal(kType, rows, 2 * intermediate));
  SHOAL_ASSIGN_OR_RETURN(const Matrix d_gate_up, data.Normal(kType, rows, 2 * intermediate));
  SHOAL_ASSIGN_OR_RETURN(const Matrix activated, data.Normal(kType, rows, intermediate));
  SHOAL_ASSIGN_OR_RETURN(const Matrix remade, data.Normal(kType, rows, intermediate));
  SHOAL_ASSIGN_OR_RETURN(const Matrix norm, data.Normal(kType, 1, hidden));
  SHOAL_ASSIGN_OR_RETURN(const Matrix bias, data.Normal(kType, 1, shape.qkv_size()));
  SHOAL_ASSIGN_OR_RETURN(float* const inverse_rms, Floats(data, rows));
  SHOAL_ASSIGN_OR_RETURN(float* const sums, Floats(data, shape.qkv_size()));
  SHOAL_ASSIGN_OR_RETURN(const Matrix d_weights,
                         data.Normal(DType::kF32, plan::NormPartials(rows), hidden));
  // Rotations, so that values keep their size when turned again and again.
  const std::vector<int32_t> angles = RandomIntegers(rows * shape.head_dim / 2, 1000);
  SHOAL_ASSIGN_OR_RETURN(const float* const cosines, Uploaded(data, angles, [](int32_t a) {
                           return std::cos(0.01F * static_cast<float>(a));
                         }));
  SHOAL_ASSIGN_OR_RETURN(const float* const sines, Uploaded(data, angles, [](int32_t a) {
                           return std::sin(0.01F * static_cast<float>(a));
                         }));
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  SHOAL_ASSIGN_OR_RETURN(const int32_t* const positions, data.Integers(order));

  const ConstVector weight{norm.data, kType, hidden};
  const int64_t rotated = shape.heads + shape.kv_heads;
  const int64_t elements = rows * hidden, floats = 4 * rows;
  const int64_t of_partials = 4 * d_weights.rows * hidden;
  const auto plus = [](Cost cost, int64_t bytes) {
    cost.bytes += static_cast<double>(bytes);
    return cost;
  };
  const Cost rotary = plus(ElementwiseCost(rows * rotated * shape.head_dim, 1, 1),
                           rows * shape.head_dim * 4 + floats);
  const std::string of_hidden = Size(rows, hidden), of_gates = Size(rows, intermediate);
  const std::string of_qkv = Size(rows, shape.qkv_size());
  const std::string of_heads = Size(rows, rotated * shape.head_dim);
  return std::vector<KernelCase>{
      {"RmsNormForward", of_hidden, plus(ElementwiseCost(elements, 1, 1), floats),
       [=, &ops](int64_t n) {
         ops.RmsNormForward(At(x, n), weight, kEpsilon, {}, At(y, n), inverse_rms);
       }},
      {"RmsNormBackward", of_hidden, plus(ElementwiseCost(elements, 3, 1), floats + of_partials),
       [=, &ops](int64_t n) {
         ops.RmsNormBackward(At(x, n), At(y, n), weight, inverse_rms, At(z, n), At(w, n),
                             d_weights);
       }},
      {"RotaryForward", of_heads, rotary,
       [=, &ops](int64_t n) {
         ops.RotaryForward(At(qkv, n), rotated, shape.head_dim,
                           {.positions = positions, .cosines = cosines, .sines = sines});
       }},
      {"SwiGluForward", of_gates, ElementwiseCost(rows * intermediate, 2, 1),
       [=, &ops](int64_t) { ops.SwiGluForward(gate_up, activated); }},
      {"SwiGluBackward", of_gates, ElementwiseCost(rows * intermediate, 3, 2),
       [=, &ops](int64_t) { ops.SwiGluBackward(activated, gate_up, d_gate_up, {}); }},
      {"SwiGluBackward, with what it was of", of_gates, ElementwiseCost(rows * intermediate, 3, 3),
       [=, &ops](int64_t) { ops.SwiGluBackward(activated, gate_up, d_gate_up, remade); }},
      {"AddBias", of_qkv, ElementwiseCost(rows * shape.qkv_size(), 1, 1),
       [=, &ops](int64_t n) {
         ops.AddBias({bias.data, kType, shape.qkv_size()}, At(qkv, n));
       }},
      {"Scale", of_qkv, ElementwiseCost(rows * shape.qkv_size(), 1, 1),
       [=, &ops](int64_t n) { ops.Scale(1, At(qkv, n)); }},
      {"AddColumnSums", of_qkv, ElementwiseCost(rows * shape.qkv_size(), 1, 0),
       [=, &ops](int64_t n) { ops.AddColumnSums(At(qkv, n), sums); }},
      {"GatherRows", of_hidden, plus(ElementwiseCost(elements, 1, 1), floats),
       [=, &ops](int64_t n) { ops.GatherRows(At(x, n), positions, rows, At(y, n)); }},
      {"ScatterRows", of_hidden, plus(ElementwiseCost(elements, 1, 1), floats),
       [=, &ops](int64_t n) { ops.ScatterRows(At(x, n), positions, rows, At(y, n)); }},
  };
}

absl::StatusOr<std::vector<KernelCase>> MakeEndCases(Ops& ops, DeviceData& data,
                                                     const plan::ModelSpec& spec, int64_t rows) {
  const int64_t hidden = spec.hidden, vocabulary = spec.vocabulary;
  const std::vector<int32_t> ids = RandomIntegers(rows, vocabulary);
  SHOAL_ASSIGN_OR_RETURN(const int32_t* const tokens, data.Integers(ids));
  SHOAL_ASSIGN_OR_RETURN(const Matrix table, data.Normal(kType, vocabulary, hidden, 0.02));
  SHOAL_ASSIGN_OR_RETURN(const Matrix d_table, data.Normal(DType::kF32, vocabulary, hidden, 0.02));
  SHOAL_ASSIGN_OR_RETURN(const Turns x, MakeTurns(data, rows, hidden));
  SHOAL_ASSIGN_OR_RETURN(const Matrix d_x, data.Normal(kType, rows, hidden));
  SHOAL_ASSIGN_OR_RETURN(void* const loss, data.Zeros(sizeof(double)));
  const std::vector<int32_t> labels_on_host = RandomIntegers(rows, vocabulary);
  SHOAL_ASSIGN_OR_RETURN(const int32_t* const labels, data.Integers(labels_on_host));
  auto* const loss_sum = static_cast<double*>(loss);
  SHOAL_ASSIGN_OR_RETURN(const Matrix of_rows, data.Normal(DType::kF32, 1, rows));
  const auto* const weights = static_cast<const float*>(of_rows.data);
  const float scale = 1.0F / static_cast<float>(rows);

  const int64_t chunk = plan::kGpuLossChunk.Rows(vocabulary, rows);
  worker::CrossEntropyBuffers buffers;
  SHOAL_ASSIGN_OR_RETURN(buffers.x, data.Normal(kType, chunk, hidden));
  SHOAL_ASSIGN_OR_RETURN(buffers.d_x, data.Normal(kType, chunk, hidden));
  SHOAL_ASSIGN_OR_RETURN(buffers.logits, data.Normal(DType::kF32, chunk, vocabulary));
  SHOAL_ASSIGN_OR_RETURN(buffers.d_logits, data.Normal(kType, chunk, vocabulary));

  auto every_row = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows));
  std::iota(every_row->begin(), every_row->end(), 0);
  SHOAL_ASSIGN_OR_RETURN(const int32_t* const every_row_on_device, data.Integers(*every_row));

  // The head's products: forward, input gradient, weight gradient.
  Cost head = MatmulCost(rows, vocabulary, hidden, false);
  head.flops *= 3;
  head.bytes = static_cast<double>(2 * rows * hidden * 2 + 2 * vocabulary * hidden * 2 +
                                   8 * vocabulary * hidden);
  return std::vector<KernelCase>{
      {"EmbeddingForward", Size(rows, hidden), ElementwiseCost(rows * hidden, 1, 1),
       [=, &ops](int64_t n) { ops.EmbeddingForward(tokens, rows, table, 1.0f, At(x, n)); }},
      {"EmbeddingBackward", Size(rows, hidden), BytesCost(rows * hidden * (2 + 8)),
       [=, &ops](int64_t n) { ops.EmbeddingBackward(tokens, rows, At(x, n), 1.0f, d_table); }},
      {"SoftmaxCrossEntropy",
       Size(chunk, vocabulary) + (IsReadTwice(vocabulary) ? ", logits read twice" : ""),
       CrossEntropyCost(chunk, vocabulary),
       [=, &ops](int64_t) {
         ops.SoftmaxCrossEntropy(buffers.logits, {labels, weights, chunk}, scale, 0.0f,
                                 buffers.d_logits, {loss_sum});
       }},
      {"the whole head: products and loss", Size(rows, vocabulary), head,
       [=, &ops](int64_t n) {
         LinearCrossEntropy(ops, At(x, n), table,
                            {.host_rows = *every_row,
                             .rows = every_row_on_device,
                             .labels = labels,
                             .weights = weights},
                            scale, 0.0f, buffers, d_x, {d_table.row<float>(0)}, {loss_sum});
       }},
      {"Convert, fp32 to bf16", Size(vocabulary, hidden), BytesCost(vocabulary * hidden * (4 + 2)),
       [=, &ops](int64_t) { ops.Convert(d_table, table); }},
      {"Zero, fp32", Size(vocabulary, hidden), BytesCost(vocabulary * hidden * 4),
       [=, &ops](int64_t) { ops.Zero(d_table); }},
  };
}

absl::StatusOr<std::vector<KernelCase>> MakeFlatCases(const FlatKernels& flat, Ops& ops,
                                                      DeviceData& data, int64_t count,
                                                      absl::Status& failed) {
  SHOAL_ASSIGN_OR_RETURN(float* const gradient, Floats(data, count));
  SHOAL_ASSIGN_OR_RETURN(float* const master, Floats(data, count, 0.02));
  SHOAL_ASSIGN_OR_RETURN(void* const m, data.Zeros(count * 4));
  SHOAL_ASSIGN_OR_RETURN(void* const v, data.Zeros(count * 4));
  SHOAL_ASSIGN_OR_RETURN(const Matrix weights, data.Normal(kType, 1, count, 0.02));
  SHOAL_ASSIGN_OR_RETURN(void* const exact, data.Zeros(count * 8));
  SHOAL_ASSIGN_OR_RETURN(void* const refused, data.Zeros(flat.RefusedCounts(count) * 8));
  const int64_t chunks = (count + server::kReductionChunk - 1) / server::kReductionChunk;
  SHOAL_ASSIGN_OR_RETURN(
      void* const statistics,
      data.Zeros(chunks * static_cast<int64_t>(sizeof(server::GradientStatistics))));
  const server::UpdateScalars scalars = server::MakeUpdateScalars({}, 3, 1e-5, 1.0);
  const AdamWArrays adamw = {
      gradient, master, static_cast<float*>(m), static_cast<float*>(v), weights.data, kType, count};
  auto* const sums = static_cast<int64_t*>(exact);
  const auto keep = [&failed](const absl::Status& status) { failed.Update(status); };
  const std::string size = fmt::format("{}", count);
  return std::vector<KernelCase>{
      {"AdamW", size, BytesCost(adamw.bytes()),
       [=, &flat, &ops](int64_t) { keep(flat.AdamW(ops.stream(), scalars, adamw)); }},
      {"accumulate, bf16 to fp32", size, BytesCost(count * (2 + 8)),
       [=, &flat, &ops](int64_t) {
         keep(flat.Add(ops.stream(), weights.data, kType, master, count));
       }},
      {"accumulate, fp32 exact", size, BytesCost(count * (4 + 16)),
       [=, &flat, &ops](int64_t) {
         keep(flat.AddExact(ops.stream(), gradient, DType::kF32, sums,
                            static_cast<int64_t*>(refused), count));
       }},
      {"exact sum to fp32", size, BytesCost(count * (8 + 4)),
       [=, &flat, &ops](int64_t) { keep(flat.ExactToFloat(ops.stream(), sums, master, count)); }},
      {"gradient statistics", size, BytesCost(count * 4),
       [=, &flat, &ops](int64_t) {
         keep(flat.Statistics(ops.stream(), gradient,
                              static_cast<server::GradientStatistics*>(statistics), count));
       }},
  };
}

}  // namespace shoal::bench
