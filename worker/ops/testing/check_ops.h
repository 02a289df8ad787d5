// Every operator of a table against the CPU's on fresh random inputs: for tests over an emulated
// GPU and for the program that checks a real one.
//
// fp32 and bf16; sizes that kernels like and sizes that they do not (odd, strided, not aligned,
// with padding rows, longer than fits registers); outputs in the place of inputs where ops.h allows
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/ops/testing/op_checker.h"

namespace shoal::worker {

enum class CheckScale : uint8_t {
  kSmall,  // a second or two for an emulated GPU
  kLarge,  // shapes of training: seconds for a GPU, and for the oracle on several cores
};

// `under_test` computes on `device`. The same seed gives the same inputs. `found` gets the checks
// of a few operators of one type as soon as they are done, and says whether to go on. The first
// `from` of such groups are left out; the others' inputs are the same.
void CheckOps(Device& device, Ops& under_test, Ops& oracle, uint64_t seed, CheckScale scale,
              const std::function<bool(std::vector<OpCheck>)>& found, int64_t from = 0);
std::vector<OpCheck> CheckOps(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                              CheckScale scale);

// What libraries may do, matrix products and attention, alone: for a table that is told to do
// without them.
std::vector<OpCheck> CheckProducts(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                                   CheckScale scale);

// Matrix products alone: for a table that looks for the fastest algorithm at a shape's first use.
std::vector<OpCheck> CheckMatmuls(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                                  CheckScale scale);

// Attention in bf16 by a table that may add in any order, and so need not give the same bits twice.
std::vector<OpCheck> CheckAttentionInAnyOrder(Device& device, Ops& under_test, Ops& oracle,
                                              uint64_t seed, CheckScale scale);

}  // namespace shoal::worker
