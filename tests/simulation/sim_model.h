// The small model that a simulated job trains, with real parameters and gradients: a sample's
// gradient follows from the sample, the stage that computes it, the element and its weight, in
// steps so large that sums of them are the same bits in any order. And the reference: what a plain
// loop over all parameters makes of a step, to which servers' bits are compared.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/model/partition.h"
#include "server/store/job_store.h"

namespace shoal::simulation {

// Of all parameters, unit by unit.
struct ModelState {
  std::array<std::vector<float>, 3> arrays;  // by server::StateArray

  std::vector<float>& of(server::StateArray array) { return arrays[static_cast<size_t>(array)]; }
  const std::vector<float>& of(server::StateArray array) const {
    return arrays[static_cast<size_t>(array)];
  }
  bool operator==(const ModelState&) const = default;
};

class SimModel {
 public:
  // Of matrices that are so many times as large as they are at least.
  SimModel(uint64_t seed, int64_t growth);

  const std::vector<plan::UnitSpec>& units() const { return units_; }
  const std::vector<plan::PartitionSpec>& partitions() const { return partitions_; }
  // Where a partition lies among all parameters.
  size_t PlaceOf(const plan::PartitionSpec& partition) const;

  ModelState Initial() const;
  // Of all parameters, with these weights.
  std::vector<float> Gradient(std::span<const float> weights,
                              std::span<const int64_t> samples) const;
  // Of the gradient of a partition, or of all.
  double SumOfSquares(std::span<const float> gradient, const plan::PartitionSpec& partition) const;
  double GradNorm(std::span<const float> gradient) const;
  // The state after a step with these samples, from the one before it.
  ModelState After(const ModelState& before, int64_t step, std::span<const int64_t> samples,
                   double learning_rate, const plan::TrainOptions& train) const;

 private:
  const uint64_t seed_;
  std::vector<plan::UnitSpec> units_;
  std::vector<plan::PartitionSpec> partitions_;
};

// Of a server: empty, or which partition and array has other bits than `state`, or was published
// with others.
std::string DifferenceTo(const server::JobStore& store, const SimModel& model,
                         const ModelState& state);

// A server's part of a checkpoint.
std::string WriteShard(const server::JobStore& store);
// All parts of one; the rest of the state stays.
void ReadShard(const std::string& shard, const SimModel& model, ModelState& state);

}  // namespace shoal::simulation
