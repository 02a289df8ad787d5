// Every operator at a model's shape, on random data, with its least cost.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/base/device_data.h"
#include "bench/gpu_check/base/flat_kernels.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/parts/floors.h"
#include "core/model/model_spec.h"
#include "worker/ops/compute_device.h"

namespace shoal::bench {

struct KernelCase {
  std::string name;
  std::string shape;
  Cost cost;
  // Makes call `number`, which alternates between copies of data that would fit a cache.
  std::function<void(int64_t number)> call;
  std::string attention = {};  // AttentionSize::Name if compared with PyTorch's
};

// Sequences of equal length, `tokens` in all.
struct AttentionSize {
  worker::AttentionShape shape;
  int64_t tokens = 0;
  int64_t sequences = 1;

  // "8 x 1024 tokens, 28 / 4 heads of 128".
  std::string Name() const;
};
// The sizes at which kernels are timed.
std::vector<AttentionSize> AttentionSizes(const PartSizes& sizes);

// For `rows` rows; the cases' data is freed with `data`. ResourceExhausted if the device has too
// little memory for it.
absl::StatusOr<std::vector<KernelCase>> MakeMatrixCases(worker::Ops& ops, DeviceData& data,
                                                        const plan::ModelSpec& spec, int64_t rows);
absl::StatusOr<std::vector<KernelCase>> MakeAttentionCases(worker::Ops& ops, DeviceData& data,
                                                           const AttentionSize& size);
absl::StatusOr<std::vector<KernelCase>> MakeBlockCases(worker::Ops& ops, DeviceData& data,
                                                       const plan::ModelSpec& spec, int64_t rows);
absl::StatusOr<std::vector<KernelCase>> MakeEndCases(worker::Ops& ops, DeviceData& data,
                                                     const plan::ModelSpec& spec, int64_t rows);
// The servers' kernels, on arrays of `count` elements. `failed`, which must outlive the cases,
// keeps failures to enqueue.
absl::StatusOr<std::vector<KernelCase>> MakeFlatCases(const FlatKernels& flat, worker::Ops& ops,
                                                      DeviceData& data, int64_t count,
                                                      absl::Status& failed);

}  // namespace shoal::bench
