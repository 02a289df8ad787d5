// cuda_matmul_bench [tokens]: products of models' layers on the machine's GPU, by cuBLASLt, by its
// fastest algorithm, and by our own kernels. Exit code 3 without a GPU.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/bench_support.h"
#include "worker/ops/cuda/matmul/matmul.h"

namespace shoal::worker::cuda {
namespace {

struct Weight {
  const char* name;
  int64_t out;
  int64_t in;
};
constexpr Weight kWeights[] = {
    {"124M qkv", 2304, 768},   {"124M up", 3072, 768},   {"124M head", 50304, 768},
    {"odd head", 50257, 768},  {"1.3B qkv", 6144, 2048}, {"1.3B gate, up", 11008, 2048},
    {"1.3B down", 2048, 5504}, {"7B qkv", 12288, 4096},  {"7B gate, up", 22016, 4096},
    {"7B down", 4096, 11008},
};

struct Product {
  std::string name;
  MatmulArgs args;
  double operations;
};

std::vector<Product> ProductsOf(const Weight& weight, int64_t tokens, const Buffer& x,
                                const Buffer& y, const Buffer& w, const Buffer& d_w) {
  const Matrix in = Matrix::Dense(x.data(), DType::kBF16, tokens, weight.in);
  const Matrix out = Matrix::Dense(y.data(), DType::kBF16, tokens, weight.out);
  const Matrix matrix = Matrix::Dense(w.data(), DType::kBF16, weight.out, weight.in);
  const Matrix d_matrix = Matrix::Dense(d_w.data(), DType::kF32, weight.out, weight.in);
  const double operations = 2.0 * static_cast<double>(tokens * weight.in * weight.out);
  const std::string name = weight.name;
  // The weight's gradient first: the other two overwrite its inputs.
  return {{name + ", dW", {.a = out, .b = in, .c = d_matrix, .transpose_a = true}, operations},
          {name + ", y", {.a = in, .b = matrix, .c = out, .transpose_b = true}, operations},
          {name + ", dx", {.a = out, .b = matrix, .c = in}, operations}};
}

absl::Status RunBench(int64_t tokens) {
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeCudaDevice({}));
  const std::unique_ptr<Stream> stream = device->NewStream();
  const absl::StatusOr<CublasLt> lt = LoadCublasLt();
  if (!lt.ok()) {
    std::printf("%s\n", Describe(lt.status()).c_str());
  }
  struct Path {
    const char* name;
    std::unique_ptr<Matmuls> matmuls;
  };
  std::vector<Path> paths;
  const auto add = [&](const char* name, const CublasLt* library,
                       int64_t tune_after) -> absl::Status {
    SHOAL_ASSIGN_OR_RETURN(std::unique_ptr<Matmuls> matmuls,
                           Matmuls::Create(*device, *stream, library, {.tune_after = tune_after}));
    paths.push_back({name, std::move(matmuls)});
    return absl::OkStatus();
  };
  SHOAL_RETURN_IF_ERROR(add("own", nullptr, 0));
  if (lt.ok()) {
    SHOAL_RETURN_IF_ERROR(add("cuBLASLt", &*lt, 0));
    SHOAL_RETURN_IF_ERROR(add("tuned", &*lt, 1));
  }
  std::printf("%s, %lld tokens, bf16; TFLOP/s\n%-22s", GpuOf(*device).name.c_str(),
              static_cast<long long>(tokens), "product");
  for (const Path& path : paths) {
    std::printf("%10s", path.name);
  }
  std::printf("\n");
  for (const Weight& weight : kWeights) {
    SHOAL_ASSIGN_OR_RETURN(const Buffer x, RandomBf16(*device, *stream, tokens * weight.in));
    SHOAL_ASSIGN_OR_RETURN(const Buffer y, RandomBf16(*device, *stream, tokens * weight.out));
    SHOAL_ASSIGN_OR_RETURN(const Buffer w, RandomBf16(*device, *stream, weight.out * weight.in));
    SHOAL_ASSIGN_OR_RETURN(const Buffer d_w,
                           device->Allocate(weight.out * weight.in * SizeOf(DType::kF32)));
    for (const Product& product : ProductsOf(weight, tokens, x, y, w, d_w)) {
      std::printf("%-22s", product.name.c_str());
      for (const Path& path : paths) {
        SHOAL_ASSIGN_OR_RETURN(const double seconds, SecondsOf(NativeStream(*stream), [&] {
                                 return path.matmuls->Run(product.args);
                               }));
        std::printf("%10.0f", product.operations / seconds / 1e12);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace shoal::worker::cuda

int main(int argc, char** argv) {
  return shoal::worker::cuda::BenchMain(argc, argv, "cuda_matmul_bench", 1 << 20,
                                        shoal::worker::cuda::RunBench);
}
