// What sequences cost a worker: used to balance, to predict idle time, and to pace emulated
// devices. A plain value, so that it can be fitted, printed and sent.
//
// A microbatch costs per_microbatch, plus per_token s + per_squared_token s^2 for each of its
// sequences of s tokens: attention is block-diagonal, so sequences add up. The unit is that of the
// coefficients: tokens, FLOPs or seconds.
#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

struct CostModel {
  double per_microbatch = 0;
  double per_token = 0;
  double per_squared_token = 0;

  // Returns the cost of one sequence, without per_microbatch.
  double Sequence(int64_t tokens) const {
    const auto s = static_cast<double>(tokens);
    return s * (per_token + per_squared_token * s);
  }
  // Returns the cost of a microbatch of those tokens, 0 if it is empty; `squared_tokens` is the sum
  // over its sequences.
  double Microbatch(int64_t tokens, double squared_tokens) const {
    return tokens == 0 ? 0.0
                       : per_microbatch + per_token * static_cast<double>(tokens) +
                             per_squared_token * squared_tokens;
  }
  // Returns the model with every coefficient multiplied by `factor`.
  CostModel Scaled(double factor) const {
    return {per_microbatch * factor, per_token * factor, per_squared_token * factor};
  }
  bool operator==(const CostModel&) const = default;
};

CostModel TokenCost();
// Returns forward and backward FLOPs for the model's shape; of adapters, what training these takes.
CostModel FlopCost(const ModelSpec& spec);
// Returns those of a job's steps: of pairs that are compared with the model without its adapters, a
// forward pass of that too.
CostModel FlopCost(const Job& job, const ModelSpec& spec);
// Returns those of a forward pass without adapters.
CostModel ForwardCost(const ModelSpec& spec);
// Returns the FLOPs of a token in one pass through all adapters; its backward pass takes two.
double AdapterFlops(const ModelSpec& spec);

}  // namespace shoal::plan
