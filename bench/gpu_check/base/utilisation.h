// Model FLOPs of training, and the share of the device's peak that they use.
#pragma once

#include <cstdint>
#include <string>

#include "core/model/model_spec.h"

namespace shoal::bench {

// NVIDIA's figure for dense bf16 on H100 and H200 (SXM). Utilisation refers to it on any device, to
// be comparable.
inline constexpr double kPeakFlops = 989e12;

// Forward and backward of `tokens` in sequences of equal length: three times the forward. Counts
// causal attention as half, recompute not at all, and of embeddings only the head's product.
double TrainingFlops(const plan::ModelSpec& spec, int64_t tokens, int64_t sequences = 1);
double Utilisation(double flops, double seconds);
// The formula in words, for the report.
std::string UtilisationFormula();

}  // namespace shoal::bench
