// Every operator at a model's shape, on random data, with what it costs at least.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu/device_data.h"
#include "bench/gpu/floors.h"
#include "plan/model_spec.h"
#include "worker/ops/machine.h"

namespace shoal::bench {

struct KernelCase {
  std::string name;
  std::string shape;
  Cost cost;
  // Call `number`, which takes turns with the data where it would fit into a cache.
  std::function<void(int64_t number)> call;
};

// For `rows` rows; their data lives as long as `data`. ResourceExhausted where the device has too
// little memory for all of it.
absl::StatusOr<std::vector<KernelCase>> MakeMatrixCases(worker::Ops& ops, DeviceData& data,
                                                        const plan::ModelSpec& spec, int64_t rows);
absl::StatusOr<std::vector<KernelCase>> MakeAttentionCases(worker::Ops& ops, DeviceData& data,
                                                           const plan::ModelSpec& spec,
                                                           int64_t rows);
absl::StatusOr<std::vector<KernelCase>> MakeBlockCases(worker::Ops& ops, DeviceData& data,
                                                       const plan::ModelSpec& spec, int64_t rows);
absl::StatusOr<std::vector<KernelCase>> MakeEndCases(worker::Ops& ops, DeviceData& data,
                                                     const plan::ModelSpec& spec, int64_t rows);

}  // namespace shoal::bench
