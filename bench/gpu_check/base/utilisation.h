// What training costs in model FLOPs, and how much of the device's peak that uses.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/model_spec.h"

namespace shoal::bench {

// NVIDIA's figure for dense bf16 on H100 and H200 (SXM); utilisation refers to it whatever the
// device, so that it is comparable.
inline constexpr double kPeakFlops = 989e12;

// Forward and backward of `tokens` in sequences of equal length: three times the forward. Causal
// attention counts as half, what is computed again not at all, and of embeddings the head's product
// alone.
double TrainingFlops(const plan::ModelSpec& spec, int64_t tokens, int64_t sequences = 1);
double Utilisation(double flops, double seconds);
// The formula in words, for the report.
std::string UtilisationFormula();

}  // namespace shoal::bench
