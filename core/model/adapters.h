// Low-rank adapters (LoRA) of a block's matrices: which matrices they are of, and where they lie in
// the unit in which a layer's adapters are fetched and pushed. Names are those of PEFT's files.
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

// The products of a block; matrices of one have the same input and lie one after the other.
enum class Product { kQkv, kOutput, kGateUp, kDown };
inline constexpr int kProducts = 4;

// A matrix of the model's files that may have an adapter: one of ours, or several that are one
// there.
struct AdaptedMatrix {
  Role role = Role::kQ;  // of the first of ours
  Product product = Product::kQkv;
  std::string module;   // "model.layers.3.self_attn.q_proj"
  int64_t inputs = 0;   // its columns
  int64_t outputs = 0;  // its rows
  int64_t column = 0;   // of the product, where its outputs begin
  int64_t offset = 0;   // in the block's unit
};
// In the order of the unit.
std::vector<AdaptedMatrix> MatricesOf(const UnitSpec& block);

// Of one matrix, by its module.
struct ModuleAdapter {
  int64_t rank = 0;
  double scale = 1;
};
using ModuleAdapters = std::map<std::string, ModuleAdapter>;
ModuleAdapters AdaptersByModule(const ModelSpec& spec);
// The inverse. InvalidArgument names a module that the model has not.
absl::StatusOr<ModelSpec> WithModuleAdapters(ModelSpec spec, const ModuleAdapters& adapters);

// Returns the model with an adapter of that rank and scale at each matrix that a target names: by
// the last part of its name ("q_proj"), as "all-linear", "attention" or "mlp", or by a glob of its
// name with *, ? and [...]. InvalidArgument names a target that fits none.
absl::StatusOr<ModelSpec> WithAdapters(ModelSpec spec, const std::vector<std::string>& targets,
                                       int64_t rank, double scale);

// What adapters of some matrices have in place of what they were made with.
struct AdapterPattern {
  std::string match;  // names them as a target does
  int64_t rank = 0;
  double scale = 1;
};
// Gives each adapter what the first pattern has that matches its matrix, if any does.
// InvalidArgument names a pattern that is the first of none.
absl::StatusOr<ModelSpec> WithPatterns(ModelSpec spec, const std::vector<AdapterPattern>& patterns);

// Returns the model that adapters were added to, as it was given.
ModelSpec WithoutAdapters(ModelSpec spec);

// Checks that each adapter is of a matrix, in order, and that a unit of them has no padding.
absl::Status ValidateAdapters(const ModelSpec& spec);

// One adapter of a product.
struct AdapterPart {
  AdaptedMatrix matrix;
  int64_t rank = 0;
  int64_t first_rank = 0;  // among those of the product
  double scale = 1;
  int64_t b = 0;  // offset of B[outputs, rank] in the adapters' unit
};
// Those of a product: their A lie one after the other, as one matrix [ranks, inputs].
struct AdaptedProduct {
  int64_t inputs = 0;
  int64_t outputs = 0;     // of the product, with or without adapters
  int64_t ranks = 0;       // added up; 0: there is none
  int64_t first_rank = 0;  // among those of the layer
  int64_t a = 0;           // offset of the first A
  std::vector<AdapterPart> parts;
};
using AdapterLayout = std::array<AdaptedProduct, kProducts>;
AdapterLayout LayoutOfAdapters(const ModelSpec& spec, const UnitSpec& block);

// Appends a unit for each layer that has adapters.
void AppendAdapterUnits(const ModelSpec& spec, std::vector<UnitSpec>& units);

// Returns the index of the unit of a layer's adapters; -1: it has none.
int AdapterUnit(const ModelSpec& spec, int64_t layer);

// Returns the ranks of a layer's adapters, added up: the largest of all layers.
int64_t AdapterRanks(const ModelSpec& spec);
// Returns the columns of the widest matrix that a product with adapters reads or makes.
int64_t AdaptedWidth(const ModelSpec& spec);

// "base_model.model." + module + ".lora_A.weight".
std::string AdapterTensorName(std::string_view module, Role a_or_b);

}  // namespace shoal::plan
