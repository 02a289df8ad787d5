// cuda_attention_bench [tokens]: attention of models' shapes on the machine's GPU, bf16, one causal
// sequence, by kernels of our own with large tiles and with small ones, and by cuDNN. Exit code 3
// where there is no GPU.
#include <cstdio>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/attention/attention.h"
#include "worker/ops/cuda/bench_support.h"

namespace shoal::worker::cuda {
namespace {

struct Model {
  const char* name;
  AttentionShape shape;
};
constexpr Model kModels[] = {
    {"124M", {12, 12, 64}}, {"1.3B", {16, 16, 128}}, {"7B", {32, 32, 128}}, {"8B", {32, 8, 128}}};

struct Path {
  const char* name;
  std::unique_ptr<Attention> attention;
};

absl::Status RunModel(const Model& model, int64_t tokens, Device& device, Stream& stream,
                      std::span<const Path> paths) {
  const AttentionShape& shape = model.shape;
  const auto matrix = [&](const Buffer& buffer, int64_t columns) {
    return Matrix::Dense(buffer.data(), DType::kBF16, tokens, columns);
  };
  SHOAL_ASSIGN_OR_RETURN(const Buffer qkv, RandomBf16(device, stream, tokens * shape.qkv_size()));
  SHOAL_ASSIGN_OR_RETURN(const Buffer d_qkv, RandomBf16(device, stream, tokens * shape.qkv_size()));
  SHOAL_ASSIGN_OR_RETURN(const Buffer out, RandomBf16(device, stream, tokens * shape.q_size()));
  SHOAL_ASSIGN_OR_RETURN(const Buffer d_out, RandomBf16(device, stream, tokens * shape.q_size()));
  SHOAL_ASSIGN_OR_RETURN(const Buffer sums,
                         device.Allocate(tokens * shape.heads * SizeOf(DType::kF32)));
  auto* const log_sum_exp = reinterpret_cast<float*>(sums.data());
  const std::vector<int32_t> cu_seqlens = {0, static_cast<int32_t>(tokens)};
  // Of the visible scores: two products forward, five backward.
  const double product = static_cast<double>(tokens) * static_cast<double>(tokens) *
                         static_cast<double>(shape.q_size());
  std::printf("%-8s", model.name);
  for (const bool backward : {false, true}) {
    for (const Path& path : paths) {
      Attention& attention = *path.attention;
      const auto run = [&] {
        return backward ? attention.Backward(matrix(d_out, shape.q_size()),
                                             matrix(qkv, shape.qkv_size()),
                                             matrix(out, shape.q_size()), log_sum_exp, shape,
                                             cu_seqlens, {}, matrix(d_qkv, shape.qkv_size()))
                        : attention.Forward(matrix(qkv, shape.qkv_size()), shape, cu_seqlens,
                                            matrix(out, shape.q_size()), log_sum_exp);
      };
      SHOAL_ASSIGN_OR_RETURN(const double seconds, SecondsOf(NativeStream(stream), run));
      std::printf("%10.0f", (backward ? 5 : 2) * product / seconds / 1e12);
    }
  }
  std::printf("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status RunBench(int64_t tokens) {
  constexpr int64_t kLittle = 99 << 10;
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeCudaDevice({}));
  const std::unique_ptr<Stream> stream = device->NewStream();
  std::vector<Path> paths;
  const auto add = [&](const char* name, AttentionOptions options) {
    paths.push_back({name, std::make_unique<Attention>(*device, *stream, std::move(options))});
  };
  add("large", {});
  add("small", {.shared_bytes = kLittle});
  absl::StatusOr<std::unique_ptr<FusedAttention>> fused = MakeCudnnAttention(*device, *stream);
  if (fused.ok()) {
    add("cuDNN", {.fused = *std::move(fused), .deterministic = false});
  } else {
    std::printf("%s\n", Describe(fused.status()).c_str());
  }
  std::printf("%s, %lld tokens, bf16; TFLOP/s, forward and backward\n%-8s",
              GpuOf(*device).name.c_str(), static_cast<long long>(tokens), "model");
  for (int pass = 0; pass < 2; ++pass) {
    for (const Path& path : paths) {
      std::printf("%10s", path.name);
    }
  }
  std::printf("\n");
  for (const Model& model : kModels) {
    SHOAL_RETURN_IF_ERROR(RunModel(model, tokens, *device, *stream, paths));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace shoal::worker::cuda

int main(int argc, char** argv) {
  return shoal::worker::cuda::BenchMain(argc, argv, "cuda_attention_bench", 1 << 18,
                                        shoal::worker::cuda::RunBench);
}
