#include "bench/gpu_check/base/resident_optimizer.h"

#include <set>
#include <utility>

#include "core/base/status.h"

namespace shoal::bench {
namespace {

// Small, so that random weights hardly change.
constexpr double kLearningRate = 1e-5;

float* Floats(const worker::Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

}  // namespace

int64_t ResidentOptimizer::Bytes(const std::vector<plan::UnitSpec>& units, bool shared) {
  std::set<int64_t> sizes;
  int64_t bytes = 0;
  for (const plan::UnitSpec& unit : units) {
    if (sizes.insert(unit.count).second || !shared) {
      bytes += unit.count * kOptimizerBytes;
    }
  }
  return bytes;
}

absl::StatusOr<ResidentOptimizer::State> ResidentOptimizer::Take(int unit) {
  const int64_t count = model_.units()[static_cast<size_t>(unit)].count;
  State state;
  for (worker::Buffer* buffer : {&state.master, &state.m, &state.v}) {
    SHOAL_ASSIGN_OR_RETURN(*buffer, model_.device().Allocate(count * SizeOf(DType::kF32)));
  }
  SHOAL_ASSIGN_OR_RETURN(const worker::WeightsView weights, weights_.Get(unit));
  worker::Ops& ops = model_.ops();
  ops.Convert({weights.data, weights.dtype, 1, count, count},
              worker::Matrix::Dense(state.master.data(), DType::kF32, 1, count));
  ops.stream().Zero(state.m.data(), state.m.bytes());
  ops.stream().Zero(state.v.data(), state.v.bytes());
  weights_.Release(unit);
  return state;
}

absl::StatusOr<std::unique_ptr<ResidentOptimizer>> ResidentOptimizer::Create(
    worker::Transformer& model, const FlatKernels& kernels, ResidentWeights& weights,
    ResidentGradients& gradients, bool shared) {
  std::unique_ptr<ResidentOptimizer> optimizer(
      new ResidentOptimizer(model, kernels, weights, gradients));
  std::map<int64_t, size_t> by_size;
  for (const plan::UnitSpec& unit : model.units()) {
    if (const auto found = by_size.find(unit.count); shared && found != by_size.end()) {
      optimizer->state_of_.push_back(found->second);
      continue;
    }
    SHOAL_ASSIGN_OR_RETURN(State state, optimizer->Take(unit.index));
    by_size[unit.count] = optimizer->states_.size();
    optimizer->state_of_.push_back(optimizer->states_.size());
    optimizer->states_.push_back(std::move(state));
  }
  SHOAL_RETURN_IF_ERROR(model.ops().Finish());
  return optimizer;
}

absl::Status ResidentOptimizer::Step() {
  const server::UpdateScalars scalars = server::MakeUpdateScalars({}, ++steps_, kLearningRate, 1.0);
  for (const plan::UnitSpec& unit : model_.units()) {
    const State& state = states_[state_of_[static_cast<size_t>(unit.index)]];
    SHOAL_RETURN_IF_ERROR(kernels_.AdamW(model_.ops().stream(), scalars,
                                         {.gradient = gradients_.Sums(unit.index).data(),
                                          .master = Floats(state.master),
                                          .m = Floats(state.m),
                                          .v = Floats(state.v),
                                          .weights = weights_.data(unit.index),
                                          .type = model_.compute(),
                                          .count = unit.count}));
  }
  gradients_.Clear();
  return absl::OkStatus();
}

}  // namespace shoal::bench
