// What training costs in model FLOPs, and how much of the device's peak that uses.
#pragma once

#include <cstdint>
#include <string>

#include "plan/model_spec.h"

namespace shoal::bench {

// NVIDIA's figure for dense bf16 on H100 and H200 (SXM); utilisation refers to it whatever the
// device, so that it is comparable.
inline constexpr double kPeakFlops = 989e12;

// Forward and backward of one sequence: three times the forward. Causal attention counts as half,
// what is computed again not at all, and of embeddings the head's product alone.
double TrainingFlops(const plan::ModelSpec& spec, int64_t tokens);
double Utilisation(const plan::ModelSpec& spec, int64_t tokens, double seconds);
// The formula in words, for the report.
std::string UtilisationFormula();

}  // namespace shoal::bench
