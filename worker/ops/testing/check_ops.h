// Compares every operator of a table with the CPU's on fresh random inputs: for tests over a
// fake GPU and for the program that checks a real one.
//
// fp32 and bf16; sizes that kernels like and sizes that they do not (odd, strided, unaligned, with
// padding rows, longer than fits registers); outputs in place of inputs where ops.h allows it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/ops/testing/op_checker.h"

namespace shoal::worker {

enum class CheckScale : uint8_t {
  kSmall,  // a second or two for a fake GPU
  kLarge,  // shapes of training: seconds for a GPU, and for the oracle on several cores
};

// `under_test` computes on `device`. The same seed gives the same inputs. `found` receives the
// checks of a few operators of one type as soon as they are done, and returns whether to go on.
// Skips the first `from` of such groups; the others' inputs stay the same.
void CheckOps(Device& device, Ops& under_test, Ops& oracle, uint64_t seed, CheckScale scale,
              const std::function<bool(std::vector<OpCheck>)>& found, int64_t from = 0);
std::vector<OpCheck> CheckOps(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                              CheckScale scale);

// Checks only matrix products and attention, which libraries may compute: for a table told to do
// without them.
std::vector<OpCheck> CheckProducts(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                                   CheckScale scale);

// Checks only matrix products: for a table that tunes at a shape's first use.
std::vector<OpCheck> CheckMatmuls(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                                  CheckScale scale);

// Checks attention in bf16 for a table that may add in any order, so bits may differ between runs.
std::vector<OpCheck> CheckAttentionInAnyOrder(Device& device, Ops& under_test, Ops& oracle,
                                              uint64_t seed, CheckScale scale);

}  // namespace shoal::worker
