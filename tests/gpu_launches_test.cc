// Whether GPUs take what models of real shapes launch: each launch, copy and fill of a microbatch
// is put on streams of a fake GPU that checks it as hardware does and runs none of it. And on
// matrices of more elements than an int counts: the first and the last block of each operator, on
// a fake GPU where an index that overflows, or lies anywhere else, ends the process.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/norm_partials.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "server/store/cuda/accumulate.h"
#include "server/store/cuda/adamw.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/model/runner.h"
#include "worker/ops/cuda/cuda_ops.h"

namespace shoal {
namespace {

using gpu::Runs;
using worker::AttentionShape;
using worker::Buffer;
using worker::ComputeDevice;
using worker::ConstMatrix;
using worker::Matrix;
using worker::Stream;

// 10 major + minor, and the shared memory that a block has there at most.
struct Gpu {
  int capability = 0;
  int64_t shared_bytes = 0;
};
constexpr Gpu kGpus[] = {{80, 163 << 10}, {86, 99 << 10}, {89, 99 << 10}, {90, 227 << 10}};

// Products and attention by kernels of our own, which is what has launches to check.
ComputeDevice MakeComputeDevice(const Gpu& kind, Runs runs) {
  gpu::SetFakeGpus({.memory_bytes = int64_t{1} << 40,
                    .multiprocessors = 132,
                    .shared_bytes = kind.shared_bytes,
                    .capability = kind.capability,
                    .runs = runs});
  ComputeDevice compute_device;
  compute_device.device = *worker::MakeCudaDevice({});
  compute_device.ops =
      *worker::MakeCudaOps(*compute_device.device, {.cublas_lt = false, .cudnn = false});
  return compute_device;
}

class Resident final : public worker::UnitSource, public worker::GradientSink {
 public:
  explicit Resident(worker::Transformer& model) : model_(model) {
    for (const plan::UnitSpec& unit : model.units()) {
      weights_.push_back(*model.device().Allocate(unit.count * SizeOf(model.compute())));
      gradients_.push_back(*model.device().Allocate(unit.count * SizeOf(DType::kF32)));
    }
    Clear();
  }
  absl::StatusOr<worker::WeightsView> Get(int unit) override {
    const auto index = static_cast<size_t>(unit);
    return worker::WeightsView{weights_[index].data(), model_.compute(),
                               model_.units()[index].count};
  }
  void Release(int) override {}
  // As a worker's sink: empty the first time after Clear, and no zeros are put there before.
  absl::StatusOr<worker::UnitGradient> Gradient(int unit) override {
    const auto index = static_cast<size_t>(unit);
    const bool empty = empty_[index];
    empty_[index] = false;
    return worker::UnitGradient{
        .sums = std::span(reinterpret_cast<float*>(gradients_[index].data()),
                          static_cast<size_t>(model_.units()[index].count)),
        .empty = empty};
  }
  absl::StatusOr<std::span<float>> Accumulator(int) override {
    return absl::InternalError("the model writes what is empty, and adds to all else");
  }
  absl::Status Done(int) override { return absl::OkStatus(); }
  void Clear() { empty_.assign(gradients_.size(), true); }

 private:
  worker::Transformer& model_;
  std::vector<Buffer> weights_;
  std::vector<Buffer> gradients_;
  std::vector<bool> empty_;
};

worker::PackedBatch Batch(const plan::ModelSpec& spec, int64_t tokens, int64_t sequences) {
  worker::PackedBatch batch;
  std::vector<int32_t> ids(static_cast<size_t>(tokens / sequences));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(spec.vocabulary));
  }
  for (int64_t s = 0; s < sequences; ++s) {
    batch.AppendNextToken(ids);
  }
  return batch;
}

struct Case {
  std::string shape;
  int64_t tokens = 0;
  int64_t sequences = 1;
  DType compute = DType::kBF16;
};

// All layers are alike.
constexpr int64_t kLayers = 2;

void ExpectLegal(const Gpu& kind, const Case& c) {
  SCOPED_TRACE(fmt::format("{}, {} tokens in {} sequences, {} on sm_{}", c.shape, c.tokens,
                           c.sequences, Name(c.compute), kind.capability));
  plan::ModelSpec spec = *plan::NamedShape(c.shape);
  spec.layers = kLayers;
  auto model = worker::Transformer::Create(spec, c.compute, MakeComputeDevice(kind, Runs::kNone));
  ASSERT_TRUE(model.ok()) << model.status();
  Resident resident(**model);
  const worker::PackedBatch batch = Batch(spec, c.tokens, c.sequences);
  for (const plan::Recompute recompute : {plan::Recompute::kNone, plan::Recompute::kFull}) {
    resident.Clear();
    // The first microbatch of a step, and one that is added to it.
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const int64_t before = gpu::Counters().launches;
      const absl::Status status =
          RunMicrobatch(**model, batch, 1.0, resident, resident, recompute).status();
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_GT(gpu::Counters().launches - before, 30 * kLayers);
    }
  }
  const absl::Status evaluated = EvaluateLoss(**model, batch, resident).status();
  EXPECT_TRUE(evaluated.ok()) << evaluated;
}

TEST(GpuLaunches, OfRealShapesAreLegal) {
  for (const Gpu& kind : kGpus) {
    for (const char* const shape : {"124m", "1.3b", "1.5b", "7b", "32b"}) {
      for (const int64_t tokens : {4096, 16384, 65536}) {
        ExpectLegal(kind, {shape, tokens});
        ExpectLegal(kind, {shape, tokens, tokens / 128});
      }
    }
  }
}

TEST(GpuLaunches, OfSizesThatAreNotRoundAreLegal) {
  for (const Gpu& kind : kGpus) {
    for (const char* const shape : {"124m", "7b"}) {
      ExpectLegal(kind, {shape, 1});
      ExpectLegal(kind, {shape, 4097});
      ExpectLegal(kind, {shape, 65535, 3});
    }
    ExpectLegal(kind, {"124m", 4096, 1, DType::kF32});
    ExpectLegal(kind, {"7b", 65536, 1, DType::kF32});
  }
}

// Of partitions of any size, none among them.
TEST(GpuLaunches, OfServersAreLegal) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000003}, int64_t{1} << 33}) {
    const ComputeDevice compute_device = MakeComputeDevice(kGpus[0], Runs::kNone);
    const cudaStream_t stream = worker::NativeStream(compute_device.ops->stream());
    const Buffer memory = *compute_device.device->Allocate(std::max<int64_t>(count, 1) * 8);
    auto* const floats = reinterpret_cast<float*>(memory.data());
    auto* const exact = reinterpret_cast<int64_t*>(memory.data());
    auto* const chunks = reinterpret_cast<server::cuda::ChunkStatistics*>(memory.data());
    for (const gpu::Element element : {gpu::Element::kF32, gpu::Element::kBf16}) {
      EXPECT_EQ(server::cuda::SetGradient(stream, floats, element, floats, count), cudaSuccess);
      EXPECT_EQ(server::cuda::AddGradient(stream, floats, element, floats, count), cudaSuccess);
      EXPECT_EQ(server::cuda::AddExactGradient(stream, floats, element, exact, exact, count),
                cudaSuccess);
      EXPECT_EQ(server::cuda::AdamW(stream, {.scalars = {},
                                             .gradient = floats,
                                             .master = floats,
                                             .m = floats,
                                             .v = floats,
                                             .wire = floats,
                                             .wire_element = element,
                                             .count = count}),
                cudaSuccess);
    }
    EXPECT_EQ(server::cuda::ExactToFloat(stream, exact, floats, count), cudaSuccess);
    EXPECT_EQ(server::cuda::GradientStatistics(stream, floats, chunks, count), cudaSuccess);
  }
}

// A matrix of 64K rows whose last elements an int does not count.
constexpr int64_t kRows = 65536;
constexpr int64_t kWide = 2 * 18944;     // the 7b shape's gate and up projections
constexpr int64_t kVocabulary = 152064;  // its logits
constexpr int kByte = 0x3F;              // of what rows are full of
constexpr float kValue = std::bit_cast<float>(0x3F3F3F3FU);
constexpr float kHalfValue = std::bit_cast<float>(0x3F3F0000U);  // of bf16

class LargeIndices : public testing::Test {
 protected:
  void SetUp() override { compute_device_ = MakeComputeDevice(kGpus[3], Runs::kEnds); }
  void TearDown() override {
    if (compute_device_.ops != nullptr) {
      const absl::Status status = compute_device_.ops->Finish();
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  worker::Ops& ops() { return *compute_device_.ops; }
  Stream& stream() { return compute_device_.ops->stream(); }

  Matrix Make(DType dtype, int64_t rows, int64_t columns) {
    buffers_.push_back(*compute_device_.device->Allocate(rows * columns * SizeOf(dtype)));
    return {buffers_.back().data(), dtype, rows, columns, columns};
  }
  // With the first and the last row full of kByte.
  Matrix MakeFull(DType dtype, int64_t rows, int64_t columns) {
    const Matrix made = Make(dtype, rows, columns);
    for (const int64_t row : {int64_t{0}, rows - 1}) {
      stream().Fill(made.Rows(row, 1).data, std::byte{kByte}, columns * SizeOf(dtype));
    }
    return made;
  }
  int32_t* Integers(const std::vector<int32_t>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
    buffers_.push_back(*compute_device_.device->Allocate(bytes));
    stream().Copy(buffers_.back().data(), values.data(), bytes);
    return reinterpret_cast<int32_t*>(buffers_.back().data());
  }
  float At(const Matrix& matrix, int64_t row, int64_t column) {
    uint32_t bits = 0;
    const int64_t element = SizeOf(matrix.dtype);
    stream().Copy(&bits, static_cast<const std::byte*>(matrix.Rows(row, 1).data) + column * element,
                  element);
    EXPECT_TRUE(stream().Synchronize().ok());
    return std::bit_cast<float>(element == 2 ? bits << 16 : bits);
  }
  // What the first and the last block have written.
  void ExpectEnds(const Matrix& matrix, double value) {
    const double near = std::abs(value) / 50 + 1e-5;
    EXPECT_NEAR(At(matrix, 0, 0), value, near);
    EXPECT_NEAR(At(matrix, matrix.rows - 1, matrix.columns - 1), value, near);
  }

  ComputeDevice compute_device_;
  std::vector<Buffer> buffers_;
};

TEST_F(LargeIndices, OfElementwiseOperators) {
  const Matrix a = MakeFull(DType::kBF16, kRows, kWide);
  const Matrix out = MakeFull(DType::kBF16, kRows, kWide);
  ops().AddBias({MakeFull(DType::kBF16, 1, kWide).data, DType::kBF16, kWide}, out);
  ExpectEnds(out, 2 * kHalfValue);
  ops().Scale(3, out);
  ExpectEnds(out, 6 * kHalfValue);
  const Matrix wider = Make(DType::kF32, kRows, kWide);
  ops().Convert(a, wider);
  ExpectEnds(wider, kHalfValue);
  ops().Zero(wider);
  ExpectEnds(wider, 0);
}

TEST_F(LargeIndices, OfSwiGlu) {
  const Matrix gate_up = MakeFull(DType::kBF16, kRows, kWide);
  const Matrix out = Make(DType::kBF16, kRows, kWide / 2);
  ops().SwiGluForward(gate_up, out);
  const double s = 1 / (1 + std::exp(-static_cast<double>(kHalfValue)));
  ExpectEnds(out, kHalfValue * kHalfValue * s);
  const Matrix d_gate_up = Make(DType::kBF16, kRows, kWide);
  ops().Zero(out);
  ops().SwiGluBackward(MakeFull(DType::kBF16, kRows, kWide / 2), gate_up, d_gate_up, out);
  ExpectEnds(out, kHalfValue * kHalfValue * s);
  EXPECT_NEAR(At(d_gate_up, kRows - 1, kWide - 1), kHalfValue * kHalfValue * s, 0.01);
}

TEST_F(LargeIndices, OfNorms) {
  constexpr int64_t kHidden = 4096;
  constexpr int64_t kManyRows = (int64_t{1} << 31) / kHidden + 1000;
  const Matrix x = MakeFull(DType::kBF16, kManyRows, kHidden);
  const Matrix y = Make(DType::kBF16, kManyRows, kHidden);
  const Matrix weight = MakeFull(DType::kBF16, 1, kHidden);
  auto* const inverse_rms = static_cast<float*>(Make(DType::kF32, 1, kManyRows).data);
  ops().RmsNormForward(x, {weight.data, DType::kBF16, kHidden}, 1e-6, {}, y, inverse_rms);
  ExpectEnds(y, kHalfValue);
  const int64_t partials = plan::NormPartials(kManyRows);
  const Matrix d_weights = Make(DType::kF32, partials, kHidden);
  ops().RmsNormBackward(x, x, {weight.data, DType::kBF16, kHidden}, inverse_rms, {}, y, d_weights);
  ExpectEnds(y, 0);
}

TEST_F(LargeIndices, OfRowsThatAreGatheredAndScattered) {
  std::vector<int32_t> same(kRows);
  for (size_t i = 0; i < same.size(); ++i) {
    same[i] = static_cast<int32_t>(i);
  }
  const int32_t* const rows = Integers(same);
  const Matrix in = MakeFull(DType::kBF16, kRows, kWide);
  const Matrix out = Make(DType::kBF16, kRows, kWide);
  ops().GatherRows(in, rows, kRows, out);
  ExpectEnds(out, kHalfValue);
  ops().Zero(out);
  ops().ScatterRows(in, rows, kRows, out);
  ExpectEnds(out, kHalfValue);
}

TEST_F(LargeIndices, OfSumsOverColumns) {
  const Matrix sums = MakeFull(DType::kF32, 1, kWide);
  ops().AddColumnSums(Make(DType::kBF16, kRows, kWide), static_cast<float*>(sums.data));
  for (const int64_t column : {int64_t{0}, kWide - 1}) {
    EXPECT_TRUE(std::isnan(At(sums, 0, column))) << "of memory that nobody has written";
  }
  EXPECT_EQ(At(sums, 0, kWide / 2), kValue) << "of a block that did not run";
}

TEST_F(LargeIndices, OfProducts) {
  constexpr int64_t kInner = 64;
  const Matrix a = MakeFull(DType::kBF16, kRows, kInner);
  const Matrix b = MakeFull(DType::kBF16, kWide, kInner);
  const Matrix c = Make(DType::kBF16, kRows, kWide);
  ops().Matmul({.a = a, .b = b, .c = c, .transpose_b = true});
  ExpectEnds(c, kInner * kHalfValue * kHalfValue);
  const Matrix addend = MakeFull(DType::kBF16, kRows, kWide);
  ops().Matmul({.a = a, .b = b, .c = c, .transpose_b = true, .addend = addend});
  ExpectEnds(c, (kInner * kHalfValue + 1) * kHalfValue);
  // The gradient of the last few rows of weights: all rows of the wide matrix are gone through.
  const ConstMatrix last = {static_cast<const uint16_t*>(c.data) + kWide - kInner, DType::kBF16,
                            kRows, kInner, kWide};
  ops().Matmul({.a = last,
                .b = a,
                .c = Make(DType::kF32, kInner, kInner),
                .transpose_a = true,
                .accumulate = true});
  // And the gradient of what the wide matrix was made of.
  ops().Matmul({.a = c.Rows(kRows - 256, 256),
                .b = MakeFull(DType::kBF16, kWide, kInner),
                .c = Make(DType::kBF16, 256, kInner)});
}

TEST_F(LargeIndices, OfLogits) {
  const Matrix logits = MakeFull(DType::kF32, kRows, kVocabulary);
  const Matrix gradients = Make(DType::kBF16, kRows, kVocabulary);
  const int32_t* const labels = Integers(std::vector<int32_t>(kRows, 0));
  const auto* const ones = reinterpret_cast<const float*>(
      Integers(std::vector<int32_t>(kRows, std::bit_cast<int32_t>(1.0F))));
  const Matrix loss = Make(DType::kF32, 1, 2);
  stream().Zero(loss.data, 8);
  ops().SoftmaxCrossEntropy(logits, {labels, ones, kRows}, 1.0F, 0.0F, gradients,
                            {static_cast<double*>(loss.data)});
  // All logits of a row being the same.
  EXPECT_NEAR(At(gradients, kRows - 1, kVocabulary - 1), 1.0 / kVocabulary, 1e-7);
  EXPECT_NEAR(At(gradients, 0, 0), 1.0 / kVocabulary - 1, 0.01);
}

TEST_F(LargeIndices, OfAttention) {
  constexpr int64_t kTokens = 65536;
  constexpr AttentionShape kShape = {.heads = 64, .kv_heads = 64, .head_dim = 128};
  constexpr int64_t kStride = 64 * 128 * 3 + 16384;  // within wider rows
  static_assert(kTokens * kStride > (int64_t{1} << 31));
  std::vector<int32_t> begins;
  for (int32_t begin = 0; begin <= kTokens; begin += 256) {
    begins.push_back(begin);
  }
  const Matrix wide = Make(DType::kBF16, kTokens, kStride);
  const Matrix qkv = {wide.data, DType::kBF16, kTokens, kShape.qkv_size(), kStride};
  const Matrix wide_gradients = Make(DType::kBF16, kTokens, kStride);
  const Matrix d_qkv = {wide_gradients.data, DType::kBF16, kTokens, kShape.qkv_size(), kStride};
  const Matrix out = Make(DType::kBF16, kTokens, kShape.q_size());
  auto* const log_sum_exp = static_cast<float*>(Make(DType::kF32, kShape.heads, kTokens).data);
  const int32_t* const positions = Integers(std::vector<int32_t>(kTokens, 1));
  const Matrix table = Make(DType::kF32, 2, kShape.head_dim / 2);
  const auto* const angles = static_cast<const float*>(table.data);
  ops().RotaryForward(qkv, kShape.heads + kShape.kv_heads, kShape.head_dim,
                      {.positions = positions, .cosines = angles, .sines = angles});
  ops().AttentionForward(qkv, kShape, begins, out, log_sum_exp);
  ops().AttentionBackward(out, qkv, out, log_sum_exp, kShape, begins,
                          {.positions = positions, .cosines = angles, .sines = angles}, d_qkv);
}

}  // namespace
}  // namespace shoal
