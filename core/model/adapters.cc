#include "core/model/adapters.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "core/base/nearest.h"
#include "core/base/status.h"

namespace shoal::plan {
namespace {

constexpr int64_t kMaxRank = 4096;
constexpr double kMaxScale = 1e6;
constexpr std::string_view kWeight = ".weight";

Product ProductOf(Role role) {
  switch (role) {
    case Role::kQ:
    case Role::kK:
    case Role::kV:
      return Product::kQkv;
    case Role::kOutput:
      return Product::kOutput;
    case Role::kGate:
    case Role::kUp:
      return Product::kGateUp;
    default:
      return Product::kDown;
  }
}

std::string LastPart(const std::string& module) { return module.substr(module.rfind('.') + 1); }

bool Fits(const std::string& target, const AdaptedMatrix& matrix) {
  if (target == "all-linear") {
    return true;
  }
  if (target == "attention" || target == "mlp") {
    const bool attends = matrix.product == Product::kQkv || matrix.product == Product::kOutput;
    return attends == (target == "attention");
  }
  return target == LastPart(matrix.module) ||
         fnmatch(target.c_str(), matrix.module.c_str(), 0) == 0;
}

void Append(UnitSpec& unit, Role role, const AdaptedMatrix& matrix, int64_t rows, int64_t columns) {
  std::string name = AdapterTensorName(matrix.module, role);
  TensorSpec& tensor =
      unit.tensors.emplace_back(TensorSpec{.role = role,
                                           .name = name,
                                           .rows = rows,
                                           .columns = columns,
                                           .offset = unit.count,
                                           .stored = {.name = name, .first_row = 0, .rows = rows}});
  unit.count += tensor.count();
}

}  // namespace

std::vector<AdaptedMatrix> MatricesOf(const UnitSpec& block) {
  std::vector<AdaptedMatrix> matrices;
  int64_t columns[kProducts] = {};
  std::string_view last;
  for (const TensorSpec& tensor : block.tensors) {
    if (tensor.rank() != 2) {
      continue;
    }
    const Product product = ProductOf(tensor.role);
    int64_t& column = columns[static_cast<size_t>(product)];
    if (tensor.stored.name != last) {
      last = tensor.stored.name;
      matrices.push_back({.role = tensor.role,
                          .product = product,
                          .module = std::string(last.substr(0, last.size() - kWeight.size())),
                          .inputs = tensor.columns,
                          .outputs = 0,
                          .column = column,
                          .offset = tensor.offset});
    }
    matrices.back().outputs += tensor.rows;
    column += tensor.rows;
  }
  return matrices;
}

ModuleAdapters AdaptersByModule(const ModelSpec& spec) {
  ModuleAdapters adapters;
  for (const UnitSpec& unit : BuildUnits(WithoutAdapters(spec))) {
    for (const AdaptedProduct& product : LayoutOfAdapters(spec, unit)) {
      for (const AdapterPart& part : product.parts) {
        adapters[part.matrix.module] = {part.rank, part.scale};
      }
    }
  }
  return adapters;
}

ModelSpec WithoutAdapters(ModelSpec spec) {
  spec.adapters.clear();
  spec.quantize = Quantize::kNone;
  spec.from_files = false;
  return spec;
}

absl::StatusOr<ModelSpec> WithModuleAdapters(ModelSpec spec, const ModuleAdapters& adapters) {
  ModuleAdapters left = adapters;
  std::vector<std::string> modules;
  const std::vector<UnitSpec> units = BuildUnits(WithoutAdapters(spec));
  spec.adapters.clear();
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    for (const AdaptedMatrix& matrix : MatricesOf(units[static_cast<size_t>(layer) + 1])) {
      modules.push_back(matrix.module);
      if (const auto of = left.extract(matrix.module); !of.empty()) {
        spec.adapters.push_back({layer, matrix.role, of.mapped().rank, of.mapped().scale});
      }
    }
  }
  if (!left.empty()) {
    return InvalidArgument("'{}': the model has no such module; {}", left.begin()->first,
                           DidYouMean(left.begin()->first, modules));
  }
  SHOAL_RETURN_IF_ERROR(ValidateAdapters(spec));
  return spec;
}

absl::StatusOr<ModelSpec> WithAdapters(ModelSpec spec, const std::vector<std::string>& targets,
                                       int64_t rank, double scale) {
  std::set<std::string> unmatched(targets.begin(), targets.end());
  std::set<std::string> names;
  ModuleAdapters adapters;
  for (const UnitSpec& unit : BuildUnits(WithoutAdapters(spec))) {
    if (unit.kind != UnitKind::kBlock) {
      continue;
    }
    for (const AdaptedMatrix& matrix : MatricesOf(unit)) {
      names.insert(LastPart(matrix.module));
      for (const std::string& target : targets) {
        if (Fits(target, matrix)) {
          adapters[matrix.module] = {rank, scale};
          unmatched.erase(target);
        }
      }
    }
  }
  if (!unmatched.empty()) {
    return InvalidArgument("'{}' matches no matrix; {}", *unmatched.begin(),
                           DidYouMean(*unmatched.begin(), {names.begin(), names.end()}));
  }
  return WithModuleAdapters(std::move(spec), adapters);
}

absl::StatusOr<ModelSpec> WithPatterns(ModelSpec spec,
                                       const std::vector<AdapterPattern>& patterns) {
  ModuleAdapters adapters = AdaptersByModule(spec);
  std::set<std::string> names;
  std::vector<bool> used(patterns.size(), false);
  for (const UnitSpec& unit : BuildUnits(WithoutAdapters(spec))) {
    for (const AdaptedMatrix& matrix : MatricesOf(unit)) {
      const auto adapter = adapters.find(matrix.module);
      if (adapter == adapters.end()) {
        continue;
      }
      names.insert(LastPart(matrix.module));
      const auto first = std::ranges::find_if(
          patterns, [&](const AdapterPattern& other) { return Fits(other.match, matrix); });
      if (first != patterns.end()) {
        adapter->second = {first->rank, first->scale};
        used[static_cast<size_t>(first - patterns.begin())] = true;
      }
    }
  }
  if (const auto unused = std::ranges::find(used, false); unused != used.end()) {
    return InvalidArgument("no matrix with an adapter ({}) has '{}' as the first that matches it",
                           absl::StrJoin(names, ", "),
                           patterns[static_cast<size_t>(unused - used.begin())].match);
  }
  return WithModuleAdapters(std::move(spec), adapters);
}

absl::Status ValidateAdapters(const ModelSpec& spec) {
  if (spec.adapters.empty()) {
    return absl::OkStatus();
  }
  const std::vector<UnitSpec> units = BuildUnits(WithoutAdapters(spec));
  const Adapter* before = nullptr;
  for (const Adapter& adapter : spec.adapters) {
    if (adapter.layer < 0 || adapter.layer >= spec.layers || adapter.rank < 1 ||
        adapter.rank > kMaxRank || !(std::abs(adapter.scale) <= kMaxScale)) {
      return InvalidArgument("an adapter of layer {} has rank {} and scale {}", adapter.layer,
                             adapter.rank, adapter.scale);
    }
    if (before != nullptr &&
        std::pair(before->layer, before->role) >= std::pair(adapter.layer, adapter.role)) {
      return InvalidArgument("adapters of layer {} are not in the order of its matrices",
                             adapter.layer);
    }
    before = &adapter;
    const auto matrices = MatricesOf(units[static_cast<size_t>(adapter.layer) + 1]);
    const auto matrix = std::ranges::find(matrices, adapter.role, &AdaptedMatrix::role);
    if (matrix == matrices.end()) {
      return InvalidArgument("an adapter of layer {} is of no matrix", adapter.layer);
    }
    for (const int64_t side : {matrix->inputs, matrix->outputs}) {
      if (adapter.rank * side % kTensorAlignment != 0) {
        return InvalidArgument(
            "an adapter of rank {} of {} with a side of {}: their product is no multiple of {}, "
            "which this worker needs",
            adapter.rank, matrix->module, side, kTensorAlignment);
      }
    }
  }
  return absl::OkStatus();
}

AdapterLayout LayoutOfAdapters(const ModelSpec& spec, const UnitSpec& block) {
  AdapterLayout layout;
  const int64_t layer = block.index - 1;
  for (const AdaptedMatrix& matrix : MatricesOf(block)) {
    AdaptedProduct& product = layout[static_cast<size_t>(matrix.product)];
    product.inputs = matrix.inputs;
    product.outputs += matrix.outputs;
    const auto adapter = std::ranges::find_if(spec.adapters, [&](const Adapter& other) {
      return other.layer == layer && other.role == matrix.role;
    });
    if (adapter != spec.adapters.end()) {
      product.parts.push_back({.matrix = matrix,
                               .rank = adapter->rank,
                               .first_rank = product.ranks,
                               .scale = adapter->scale});
      product.ranks += adapter->rank;
    }
  }
  int64_t offset = 0;
  int64_t ranks = 0;
  for (AdaptedProduct& product : layout) {
    product.first_rank = ranks;
    ranks += product.ranks;
    product.a = offset;
    offset += product.ranks * product.inputs;
    for (AdapterPart& part : product.parts) {
      part.b = offset;
      offset += part.matrix.outputs * part.rank;
    }
  }
  return layout;
}

void AppendAdapterUnits(const ModelSpec& spec, std::vector<UnitSpec>& units) {
  for (int64_t layer = 0; layer < spec.layers && !spec.adapters.empty(); ++layer) {
    UnitSpec unit{.index = static_cast<int>(units.size()),
                  .kind = UnitKind::kAdapter,
                  .name = fmt::format("block.{}.adapter", layer),
                  .tensors = {}};
    for (const AdaptedProduct& product :
         LayoutOfAdapters(spec, units[static_cast<size_t>(layer) + 1])) {
      for (const AdapterPart& part : product.parts) {
        Append(unit, Role::kLoraA, part.matrix, part.rank, part.matrix.inputs);
      }
      for (const AdapterPart& part : product.parts) {
        Append(unit, Role::kLoraB, part.matrix, part.matrix.outputs, part.rank);
      }
    }
    if (unit.count > 0) {
      units.push_back(std::move(unit));
    }
  }
}

int AdapterUnit(const ModelSpec& spec, int64_t layer) {
  int unit = static_cast<int>(spec.layers) + 1;
  int64_t last = -1;
  for (const Adapter& adapter : spec.adapters) {
    unit += adapter.layer != last ? 1 : 0;
    last = adapter.layer;
    if (last == layer) {
      return unit;
    }
  }
  return -1;
}

int64_t AdapterRanks(const ModelSpec& spec) {
  int64_t most = 0;
  int64_t ranks = 0;
  int64_t layer = -1;
  for (const Adapter& adapter : spec.adapters) {
    ranks = adapter.layer == layer ? ranks + adapter.rank : adapter.rank;
    layer = adapter.layer;
    most = std::max(most, ranks);
  }
  return most;
}

// What is added to the residual stream is fp32, which may be two columns of the compute type.
int64_t AdaptedWidth(const ModelSpec& spec) {
  return spec.adapters.empty() ? 0
                               : std::max({2 * spec.hidden, spec.attention().qkv_size(),
                                           2 * spec.mlp().intermediate});
}

std::string AdapterTensorName(std::string_view module, Role a_or_b) {
  return fmt::format("base_model.model.{}.lora_{}.weight", module,
                     a_or_b == Role::kLoraA ? 'A' : 'B');
}

}  // namespace shoal::plan
