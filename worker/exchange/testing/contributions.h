// A step's gradients in tests of sinks: integers, whose sums are exact in any order.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/testing/client_rig.h"
#include "core/base/random.h"
#include "core/model/model_spec.h"
#include "worker/backend/backend.h"
#include "worker/model/access/unit_access.h"

namespace shoal::worker {

struct Contribution {
  int unit = 0;
  std::vector<float> gradient;
  int64_t pack = 0;
  bool tied = false;  // the first of a unit's two
};

inline absl::Status Done(GradientSink& sink, const Contribution& contribution) {
  sink.AtPack(contribution.pack);
  return contribution.tied ? sink.DoneTied() : sink.Done(contribution.unit);
}

// Makes `per_microbatch` contributions of each unit per microbatch, in random order. Other workers
// have other gradients in the same order.
inline std::vector<Contribution> RandomContributions(const std::vector<plan::UnitSpec>& units,
                                                     const std::vector<int>& per_microbatch,
                                                     int microbatches, uint64_t seed,
                                                     int worker = 0) {
  std::vector<int> order;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    order.insert(order.end(), static_cast<size_t>(per_microbatch[unit] * microbatches),
                 static_cast<int>(unit));
  }
  Random(seed).Shuffle(order);
  std::vector<int> done(units.size(), 0);
  std::vector<Contribution> contributions;
  for (const int unit : order) {
    const auto at = static_cast<size_t>(unit);
    const int before = done[at]++;
    contributions.push_back({.unit = unit,
                             .gradient = client::IntegerGradient(units[at], 50 * worker + done[at]),
                             .pack = before / per_microbatch[at],
                             .tied = per_microbatch[at] == 2 && before % 2 == 0});
  }
  return contributions;
}

// Expected sums at servers, by unit.
using GradientSums = std::vector<std::vector<int64_t>>;
inline void AddUp(const Contribution& contribution, GradientSums& sums) {
  std::vector<int64_t>& sum = sums[static_cast<size_t>(contribution.unit)];
  sum.resize(contribution.gradient.size(), 0);
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] += static_cast<int64_t>(contribution.gradient[i]);
  }
}

// Adds to an accumulator in device memory, on the compute stream, which reads `kept` until done.
inline absl::Status AddOnDevice(std::span<float> accumulator, const std::vector<float>& gradient,
                                Stream& compute, std::deque<std::vector<float>>& kept) {
  std::vector<float> sum(accumulator.size());
  const auto bytes = static_cast<int64_t>(accumulator.size_bytes());
  compute.Copy(sum.data(), accumulator.data(), bytes);
  if (absl::Status status = compute.Synchronize(); !status.ok()) {
    return status;
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] += gradient[i];
  }
  kept.push_back(std::move(sum));
  compute.Copy(accumulator.data(), kept.back().data(), bytes);
  return absl::OkStatus();
}

}  // namespace shoal::worker
