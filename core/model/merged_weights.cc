#include "core/model/merged_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/model/adapters.h"

namespace shoal::plan {
namespace {

// Adds scale B A to elements [begin, begin + out.size()) of the matrix.
absl::Status AddAdapter(const AdaptedProduct& product, const AdapterPart& part, int unit,
                        const UnitReader& read, int64_t begin, std::span<float> out) {
  const int64_t columns = product.inputs;
  const int64_t first_row = begin / columns;
  const int64_t rows = (begin + std::ssize(out) - 1) / columns + 1 - first_row;
  std::vector<float> a(static_cast<size_t>(part.rank * columns));
  std::vector<float> b(static_cast<size_t>(rows * part.rank));
  SHOAL_RETURN_IF_ERROR(read(unit, product.a + part.first_rank * columns, a));
  SHOAL_RETURN_IF_ERROR(read(unit, part.b + first_row * part.rank, b));
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = begin + static_cast<int64_t>(i);
    const int64_t row = at / columns - first_row;
    double sum = 0;
    for (int64_t k = 0; k < part.rank; ++k) {
      sum += static_cast<double>(b[static_cast<size_t>(row * part.rank + k)]) *
             static_cast<double>(a[static_cast<size_t>(k * columns + at % columns)]);
    }
    out[i] = static_cast<float>(static_cast<double>(out[i]) + part.scale * sum);
  }
  return absl::OkStatus();
}

}  // namespace

UnitReader MergedWeights(const ModelSpec& spec, UnitReader read) {
  return [spec, units = BuildUnits(spec), read = std::move(read)](
             int unit, int64_t offset, std::span<float> out) -> absl::Status {
    SHOAL_RETURN_IF_ERROR(read(unit, offset, out));
    const UnitSpec& block = units[static_cast<size_t>(unit)];
    const int adapters = block.kind == UnitKind::kBlock ? AdapterUnit(spec, unit - 1) : -1;
    if (adapters < 0) {
      return absl::OkStatus();
    }
    const int64_t last = offset + std::ssize(out);
    for (const AdaptedProduct& product : LayoutOfAdapters(spec, block)) {
      for (const AdapterPart& part : product.parts) {
        const AdaptedMatrix& matrix = part.matrix;
        const int64_t begin = std::max(offset, matrix.offset);
        const int64_t end = std::min(last, matrix.offset + matrix.outputs * matrix.inputs);
        if (begin < end) {
          SHOAL_RETURN_IF_ERROR(AddAdapter(
              product, part, adapters, read, begin - matrix.offset,
              out.subspan(static_cast<size_t>(begin - offset), static_cast<size_t>(end - begin))));
        }
      }
    }
    return absl::OkStatus();
  };
}

}  // namespace shoal::plan
