#include "worker/model/lora/adapter.h"

namespace shoal::worker {
namespace {

const plan::AdaptedProduct* Find(const AdapterWeights& adapters, plan::Product product) {
  if (adapters.layout == nullptr) {
    return nullptr;
  }
  const plan::AdaptedProduct& found = (*adapters.layout)[static_cast<size_t>(product)];
  return found.ranks > 0 ? &found : nullptr;
}

ConstMatrix Weight(const AdapterWeights& adapters, int64_t offset, int64_t rows, int64_t columns) {
  return ConstMatrix::Dense(
      static_cast<const std::byte*>(adapters.data) + offset * SizeOf(adapters.dtype),
      adapters.dtype, rows, columns);
}

ConstMatrix WeightB(const AdapterWeights& adapters, const plan::AdapterPart& part) {
  return Weight(adapters, part.b, part.matrix.outputs, part.rank);
}

// The product's of a matrix that has those of the layer.
template <typename M>
M Reduced(M all, const plan::AdaptedProduct& product) {
  return all.Columns(product.first_rank, product.ranks);
}

template <typename M>
M Outputs(M of_product, const plan::AdapterPart& part) {
  return of_product.Columns(part.matrix.column, part.matrix.outputs);
}

DropoutMask MaskOf(DropoutMask of_layer, plan::Product product) {
  of_layer.matrix += static_cast<uint32_t>(product);
  return of_layer;
}

// In memory.scratch, with the residual in it.
Matrix StartSum(Ops& ops, ConstMatrix residual, const AdapterMemory& memory) {
  const Matrix sum =
      Matrix::Dense(memory.scratch.data, DType::kF32, residual.rows, residual.columns);
  ops.Convert(residual, sum);
  return sum;
}

void AddProduct(Ops& ops, ConstMatrix d_y, ConstMatrix x, int64_t offset,
                const UnitGradient& gradient) {
  ops.Matmul(
      {.a = d_y,
       .b = x,
       .c = Matrix::Dense(gradient.sums.data() + offset, DType::kF32, d_y.columns, x.columns),
       .transpose_a = true,
       .accumulate = !gradient.empty});
}

// Makes memory.reduced of the gradient of the product.
void ReduceGradient(Ops& ops, const AdapterWeights& adapters, const plan::AdaptedProduct& product,
                    ConstMatrix d_y, const AdapterMemory& memory) {
  for (const plan::AdapterPart& part : product.parts) {
    const Matrix d_part = Reduced(memory.reduced, product).Columns(part.first_rank, part.rank);
    ops.Matmul({.a = Outputs(d_y, part), .b = WeightB(adapters, part), .c = d_part});
    ops.Scale(static_cast<float>(part.scale), d_part);
  }
}

void Expand(Ops& ops, const AdapterWeights& adapters, const plan::AdaptedProduct& product,
            const AdapterMemory& memory, Matrix y, bool accumulate) {
  for (const plan::AdapterPart& part : product.parts) {
    ops.Matmul({.a = Reduced(memory.reduced, product).Columns(part.first_rank, part.rank),
                .b = WeightB(adapters, part),
                .c = Outputs(y, part),
                .transpose_b = true,
                .accumulate = accumulate});
  }
}

void ExpandGradient(Ops& ops, const AdapterWeights& adapters, const plan::AdaptedProduct& product,
                    const AdapterMemory& memory, Matrix d_x, bool accumulate) {
  ops.Matmul({.a = Reduced(memory.reduced, product),
              .b = Weight(adapters, product.a, product.ranks, product.inputs),
              .c = d_x,
              .accumulate = accumulate});
}

}  // namespace

ConstMatrix SeenInput(Ops& ops, const DropoutMask& of_layer, plan::Product product, ConstMatrix x,
                      const AdapterMemory& memory) {
  if (of_layer.probability == 0) {
    return x;
  }
  const Matrix seen = memory.scratch.Columns(0, x.columns);
  ops.Dropout(x, MaskOf(of_layer, product), {}, seen);
  return seen;
}

void ReduceInput(Ops& ops, const AdapterWeights& adapters, plan::Product of, ConstMatrix x,
                 const AdapterMemory& memory) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return;
  }
  const Matrix reduced = Reduced(memory.reduced, *product);
  ops.Matmul({.a = SeenInput(ops, adapters.dropout, of, x, memory),
              .b = Weight(adapters, product->a, product->ranks, product->inputs),
              .c = reduced,
              .transpose_b = true});
  for (const plan::AdapterPart& part : product->parts) {
    ops.Scale(static_cast<float>(part.scale), reduced.Columns(part.first_rank, part.rank));
  }
}

ConstMatrix AdaptForward(Ops& ops, const AdapterWeights& adapters, plan::Product of, ConstMatrix x,
                         const AdapterMemory& memory) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return {};
  }
  ReduceInput(ops, adapters, of, x, memory);
  const Matrix added = memory.scratch.Columns(0, product->outputs);
  int64_t end = 0;  // of the columns that an adapter adds to
  const auto zero_to = [&](int64_t begin) {
    if (begin > end) {
      ops.Zero(added.Columns(end, begin - end));
    }
  };
  for (const plan::AdapterPart& part : product->parts) {
    zero_to(part.matrix.column);
    end = part.matrix.column + part.matrix.outputs;
  }
  zero_to(product->outputs);
  Expand(ops, adapters, *product, memory, added, /*accumulate=*/false);
  return added;
}

ConstMatrix AdaptBackward(Ops& ops, const AdapterWeights& adapters, plan::Product of,
                          ConstMatrix d_y, const AdapterMemory& memory) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return {};
  }
  ReduceGradient(ops, adapters, *product, d_y, memory);
  const Matrix added = memory.scratch.Columns(0, product->inputs);
  ExpandGradient(ops, adapters, *product, memory, added, /*accumulate=*/false);
  if (adapters.dropout.probability > 0) {
    ops.Dropout(added, MaskOf(adapters.dropout, of), {}, added);
  }
  return added;
}

Matrix AdaptStreamForward(Ops& ops, const AdapterWeights& adapters, plan::Product of, ConstMatrix x,
                          ConstMatrix residual, const AdapterMemory& memory) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return {};
  }
  ReduceInput(ops, adapters, of, x, memory);
  const Matrix sum = StartSum(ops, residual, memory);
  Expand(ops, adapters, *product, memory, sum, /*accumulate=*/true);
  return sum;
}

Matrix AdaptStreamBackward(Ops& ops, const AdapterWeights& adapters, plan::Product of,
                           ConstMatrix d_y, ConstMatrix residual, const AdapterMemory& memory) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return {};
  }
  ReduceGradient(ops, adapters, *product, d_y, memory);
  if (adapters.dropout.probability > 0) {
    const Matrix sum =
        Matrix::Dense(memory.scratch.data, DType::kF32, residual.rows, residual.columns);
    ExpandGradient(ops, adapters, *product, memory, sum, /*accumulate=*/false);
    ops.Dropout(sum, MaskOf(adapters.dropout, of), residual, sum);
    return sum;
  }
  const Matrix sum = StartSum(ops, residual, memory);
  ExpandGradient(ops, adapters, *product, memory, sum, /*accumulate=*/true);
  return sum;
}

void AddAdapterGradient(Ops& ops, const plan::AdaptedProduct& product, ConstMatrix d_y,
                        ConstMatrix x, ConstMatrix reduced, ConstMatrix d_reduced,
                        const UnitGradient& gradient) {
  AddProduct(ops, Reduced(d_reduced, product), x, product.a, gradient);
  for (const plan::AdapterPart& part : product.parts) {
    AddProduct(ops, Outputs(d_y, part),
               Reduced(reduced, product).Columns(part.first_rank, part.rank), part.b, gradient);
  }
}

}  // namespace shoal::worker
