// What adapters (core/model/adapters.h) add to a block's products: y = x W^T + scale (x A^T) B^T.
// Each product of the block is added to what the adapters make, in memory of its own, so that W is
// not touched.
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
  DropoutMask dropout = {};  // of the layer's first product; none of it outside of training
};

// Memory of a block, of T rows.
struct AdapterMemory {
  Matrix reduced;  // [T, ranks]: scale x A^T, or the gradient of x A^T; each is left for W
  Matrix scratch;  // [T, plan::AdaptedWidth]
};

// Returns the part of a product's input that its adapters see: x itself, or what dropout leaves of
// it, in memory.scratch. `of_layer`: as AdapterWeights has it.
ConstMatrix SeenInput(Ops& ops, const DropoutMask& of_layer, plan::Product product, ConstMatrix x,
                      const AdapterMemory& memory);

// Makes memory.reduced of the product's adapters.
void ReduceInput(Ops& ops, const AdapterWeights& adapters, plan::Product product, ConstMatrix x,
                 const AdapterMemory& memory);

// Returns, in memory.scratch, what adapters add to the product of x; null: it has none.
ConstMatrix AdaptForward(Ops& ops, const AdapterWeights& adapters, plan::Product product,
                         ConstMatrix x, const AdapterMemory& memory);

// Returns what adapters add to d_y W, the gradient of x, likewise. memory.reduced is left for W.
ConstMatrix AdaptBackward(Ops& ops, const AdapterWeights& adapters, plan::Product product,
                          ConstMatrix d_y, const AdapterMemory& memory);

// The same for products that are added to the residual stream: the fp32 sum with it, to which the
// product is to be ADDED. What adapters add is often less than half of the stream's last bit.
Matrix AdaptStreamForward(Ops& ops, const AdapterWeights& adapters, plan::Product product,
                          ConstMatrix x, ConstMatrix residual, const AdapterMemory& memory);
Matrix AdaptStreamBackward(Ops& ops, const AdapterWeights& adapters, plan::Product product,
                           ConstMatrix d_y, ConstMatrix residual, const AdapterMemory& memory);

// W: ADDS to the gradient of the adapters' unit, or writes it if empty. `x`: what they saw.
void AddAdapterGradient(Ops& ops, const plan::AdaptedProduct& product, ConstMatrix d_y,
                        ConstMatrix x, ConstMatrix reduced, ConstMatrix d_reduced,
                        const UnitGradient& gradient);

}  // namespace shoal::worker
