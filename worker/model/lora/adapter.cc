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
  return of_product.data == nullptr ? of_product
                                    : of_product.Columns(part.matrix.column, part.matrix.outputs);
}

// Fills columns [begin, end) of `out`, to which no adapter adds.
void PassOn(Ops& ops, ConstMatrix addend, int64_t begin, int64_t end, Matrix out) {
  if (begin == end) {
    return;
  }
  const Matrix part = out.Columns(begin, end - begin);
  if (addend.data == nullptr) {
    ops.Zero(part);
  } else {
    ops.Convert(addend.Columns(begin, end - begin), part);
  }
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

}  // namespace

void ReduceInput(Ops& ops, const AdapterWeights& adapters, plan::Product of, ConstMatrix x,
                 const AdapterMemory& memory) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return;
  }
  const Matrix reduced = Reduced(memory.reduced, *product);
  ops.Matmul({.a = x,
              .b = Weight(adapters, product->a, product->ranks, product->inputs),
              .c = reduced,
              .transpose_b = true});
  for (const plan::AdapterPart& part : product->parts) {
    ops.Scale(static_cast<float>(part.scale), reduced.Columns(part.first_rank, part.rank));
  }
}

ConstMatrix AdaptForward(Ops& ops, const AdapterWeights& adapters, plan::Product of, ConstMatrix x,
                         ConstMatrix addend, const AdapterMemory& memory) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return addend;
  }
  ReduceInput(ops, adapters, of, x, memory);
  const Matrix reduced = Reduced(memory.reduced, *product);
  const Matrix added = memory.scratch.Columns(0, product->outputs);
  int64_t end = 0;  // of the columns that are done
  for (const plan::AdapterPart& part : product->parts) {
    PassOn(ops, addend, end, part.matrix.column, added);
    ops.Matmul({.a = reduced.Columns(part.first_rank, part.rank),
                .b = WeightB(adapters, part),
                .c = Outputs(added, part),
                .transpose_b = true,
                .addend = Outputs(addend, part)});
    end = part.matrix.column + part.matrix.outputs;
  }
  PassOn(ops, addend, end, product->outputs, added);
  return added;
}

ConstMatrix AdaptBackward(Ops& ops, const AdapterWeights& adapters, plan::Product of,
                          ConstMatrix d_y, ConstMatrix addend, Matrix d_reduced, Matrix scratch) {
  const plan::AdaptedProduct* const product = Find(adapters, of);
  if (product == nullptr) {
    return addend;
  }
  const Matrix d_product = Reduced(d_reduced, *product);
  for (const plan::AdapterPart& part : product->parts) {
    const Matrix d_part = d_product.Columns(part.first_rank, part.rank);
    ops.Matmul({.a = Outputs(d_y, part), .b = WeightB(adapters, part), .c = d_part});
    ops.Scale(static_cast<float>(part.scale), d_part);
  }
  const Matrix added = scratch.Columns(0, product->inputs);
  ops.Matmul({.a = d_product,
              .b = Weight(adapters, product->a, product->ranks, product->inputs),
              .c = added,
              .addend = addend});
  return added;
}

void AddAdapterGradient(Ops& ops, const plan::AdaptedProduct& product, ConstMatrix d_y,
                        ConstMatrix x, ConstMatrix reduced, ConstMatrix d_reduced,
                        const UnitGradient& gradient) {
  if (product.ranks == 0) {
    return;
  }
  AddProduct(ops, Reduced(d_reduced, product), x, product.a, gradient);
  for (const plan::AdapterPart& part : product.parts) {
    AddProduct(ops, Outputs(d_y, part),
               Reduced(reduced, product).Columns(part.first_rank, part.rank), part.b, gradient);
  }
}

}  // namespace shoal::worker
