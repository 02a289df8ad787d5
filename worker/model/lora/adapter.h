// What adapters (core/model/adapters.h) add to a block's products: y = x W^T + scale (x A^T) B^T.
// Each product of the block takes as its addend what the adapters make, in memory of its own, so
// that W is not touched and nothing is added in place.
#pragma once

#include "core/base/dtype.h"
#include "core/model/adapters.h"
#include "worker/model/access/unit_access.h"
#include "worker/ops/ops.h"

namespace shoal::worker {

// A layer's adapters and where their weights are at the moment (compute type).
struct AdapterWeights {
  const plan::AdapterLayout* layout = nullptr;  // null: the layer has none
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

// Memory of a block, of T rows.
struct AdapterMemory {
  Matrix reduced;  // [T, ranks]: scale x A^T, which forward leaves for W
  Matrix scratch;  // [T, plan::AdaptedWidth]
};

// Makes memory.reduced of the product's adapters.
void ReduceInput(Ops& ops, const AdapterWeights& adapters, plan::Product product, ConstMatrix x,
                 const AdapterMemory& memory);

// Returns the addend of the product of x: `addend` (which may be null), and in memory.scratch what
// adapters add to it, if it has any.
ConstMatrix AdaptForward(Ops& ops, const AdapterWeights& adapters, plan::Product product,
                         ConstMatrix x, ConstMatrix addend, const AdapterMemory& memory);

// Returns the addend of d_y W, the gradient of x, likewise. d_reduced[T, ranks] is left for W.
ConstMatrix AdaptBackward(Ops& ops, const AdapterWeights& adapters, plan::Product product,
                          ConstMatrix d_y, ConstMatrix addend, Matrix d_reduced, Matrix scratch);

// W: ADDS to the gradient of the adapters' unit, or writes it if empty.
void AddAdapterGradient(Ops& ops, const plan::AdaptedProduct& product, ConstMatrix d_y,
                        ConstMatrix x, ConstMatrix reduced, ConstMatrix d_reduced,
                        const UnitGradient& gradient);

}  // namespace shoal::worker
