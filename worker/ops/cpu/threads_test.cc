// The number of threads changes no bit of a result.
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "worker/ops/testing/check_ops.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Tensor;

constexpr int kThreads[] = {2, 3, 4, 8};

TEST(Threads, ChangeNoBitOfAnyOperator) {
  CpuFixture one(1);
  for (const int threads : kThreads) {
    CpuFixture several(threads);
    const std::vector<OpCheck> checks =
        CheckOps(*several.device, *several.ops, *one.ops, 11, CheckScale::kSmall);
    EXPECT_GT(checks.size(), 150u);
    for (const OpCheck& check : checks) {
      EXPECT_TRUE(check.wrong.empty() && check.error == 0)
          << check.name << " with " << threads << " threads: " << check.error << check.wrong;
    }
  }
}

struct ProductSize {
  int64_t m, n, k;
};

// Sizes of layers, of few and of many tokens, and rests that make thin pieces.
constexpr ProductSize kProducts[] = {{1, 768, 256},     {7, 1000, 512},  {33, 65, 129},
                                     {70, 45, 33},      {96, 1536, 512}, {100, 512, 1408},
                                     {509, 331, 257},   {512, 512, 512}, {520, 100, 300},
                                     {1100, 1030, 200}, {1536, 512, 70}, {1536, 1000, 1100}};

class OnOneThread {
 public:
  OnOneThread(const ProductSize& p, DType input, DType output, bool transpose_a, bool transpose_b,
              bool accumulate)
      : random_(static_cast<uint64_t>(p.m * 1000003 + p.n * 1009 + p.k)),
        a_(Tensor::Normal(input, transpose_a ? p.k : p.m, transpose_a ? p.m : p.k, random_)),
        b_(Tensor::Normal(input, transpose_b ? p.n : p.k, transpose_b ? p.k : p.n, random_)),
        before_(Tensor::Normal(output, p.m, p.n, random_)),
        args_({.transpose_a = transpose_a, .transpose_b = transpose_b, .accumulate = accumulate}),
        result_(Run(1)) {}

  bool SameWith(int threads) { return Run(threads).SameBits(result_); }

 private:
  Tensor Run(int threads) {
    CpuFixture cpu(threads);
    Tensor c = before_;
    args_.a = a_.view();
    args_.b = b_.view();
    args_.c = c.view();
    cpu.ops->Matmul(args_);
    EXPECT_TRUE(cpu.ops->Finish().ok());
    return c;
  }

  Random random_;
  Tensor a_;
  Tensor b_;
  Tensor before_;
  MatmulArgs args_;
  Tensor result_;
};

TEST(Threads, ChangeNoBitOfAProduct) {
  for (const ProductSize& p : kProducts) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int kind : {0, 1, 2}) {  // a layer's forward, d_input and d_weight
        const bool accumulate = kind == 2;
        OnOneThread one(p, dtype, accumulate ? DType::kF32 : dtype, accumulate, kind == 0,
                        accumulate);
        for (const int threads : kThreads) {
          EXPECT_TRUE(one.SameWith(threads)) << fmt::format(
              "{} {}x{}x{} of kind {} with {} threads", Name(dtype), p.m, p.n, p.k, kind, threads);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal::worker
