// AdamW with state, weights and gradients resident in device memory: the step that a server takes
// for its partitions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/gpu_check/base/flat_kernels.h"
#include "bench/gpu_check/base/resident_units.h"
#include "worker/model/transformer.h"

namespace shoal::bench {

// fp32 master weights and two moments.
inline constexpr int64_t kOptimizerBytes = 12;  // per parameter

class ResidentOptimizer {
 public:
  // Masters start as the weights, moments as zero. `shared`: units of one size share one state, for
  // lack of room; a step takes as long and moves as many bytes. All arguments must outlive this.
  static absl::StatusOr<std::unique_ptr<ResidentOptimizer>> Create(worker::Transformer& model,
                                                                   const FlatKernels& kernels,
                                                                   ResidentWeights& weights,
                                                                   ResidentGradients& gradients,
                                                                   bool shared);
  static int64_t Bytes(const std::vector<plan::UnitSpec>& units, bool shared);

  // Puts a step on the compute stream, which also clears the gradients.
  absl::Status Step();

 private:
  struct State {
    worker::Buffer master, m, v;
  };
  ResidentOptimizer(worker::Transformer& model, const FlatKernels& kernels,
                    ResidentWeights& weights, ResidentGradients& gradients)
      : model_(model), kernels_(kernels), weights_(weights), gradients_(gradients) {}
  absl::StatusOr<State> Take(int unit);

  worker::Transformer& model_;
  const FlatKernels& kernels_;
  ResidentWeights& weights_;
  ResidentGradients& gradients_;
  std::vector<State> states_;
  std::vector<size_t> state_of_;  // by unit
  int64_t steps_ = 0;
};

}  // namespace shoal::bench
