// Shared by the benches of operators on the machine's GPU: random values, timing, and main.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/bf16.h"
#include "core/base/dtype.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "worker/backend/backend.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

// Random values: products of zeros draw less power and run faster than real ones.
inline absl::StatusOr<Buffer> RandomBf16(Device& device, Stream& stream, int64_t count) {
  SHOAL_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(count * SizeOf(DType::kBF16)));
  std::vector<BFloat16> values(static_cast<size_t>(count));
  Random random(static_cast<uint64_t>(count));
  for (BFloat16& value : values) {
    value = BFloat16(static_cast<float>(random.Uniform() - 0.5));
  }
  stream.Copy(buffer.data(), values.data(), buffer.bytes());
  SHOAL_RETURN_IF_ERROR(stream.Synchronize());
  return buffer;
}

// Times what `run` puts on the stream: the best mean of a few batches.
template <typename Run>
absl::StatusOr<double> SecondsOf(cudaStream_t stream, const Run& run) {
  constexpr int kBatches = 5;
  constexpr int kRuns = 10;
  using Event = std::unique_ptr<CUevent_st, cudaError_t (*)(cudaEvent_t)>;
  std::vector<Event> events;
  for (int batch = 0; batch <= kBatches; ++batch) {
    for (int i = 0; i < kRuns; ++i) {
      SHOAL_RETURN_IF_ERROR(run());
    }
    cudaEvent_t event = nullptr;
    SHOAL_RETURN_IF_ERROR(ToStatus(cudaEventCreate(&event), 0, "making an event"));
    events.emplace_back(event, cudaEventDestroy);
    SHOAL_RETURN_IF_ERROR(ToStatus(cudaEventRecord(event, stream), 0, "recording an event"));
  }
  SHOAL_RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), 0, "waiting"));
  std::optional<float> least;
  for (size_t batch = 0; batch < kBatches; ++batch) {
    float milliseconds = 0;
    SHOAL_RETURN_IF_ERROR(
        ToStatus(cudaEventElapsedTime(&milliseconds, events[batch].get(), events[batch + 1].get()),
                 0, "reading events"));
    least = std::min(least.value_or(milliseconds), milliseconds);
  }
  return *least / 1e3 / kRuns;
}

// Main of `name [tokens]`: runs it and returns the exit code, 3 if there is no GPU.
inline int BenchMain(int argc, char** argv, const char* name, int64_t most_tokens,
                     absl::Status (*run)(int64_t tokens)) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 4096;
  if (tokens < 1 || tokens > most_tokens) {
    std::fprintf(stderr, "usage: %s [tokens, up to %lld]\n", name,
                 static_cast<long long>(most_tokens));
    return 2;
  }
  const absl::Status status = run(tokens);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", Describe(status).c_str());
    return status.code() == absl::StatusCode::kNotFound ? 3 : 1;
  }
  return 0;
}

}  // namespace shoal::worker::cuda
