#include "bench/gpu/utilisation.h"

#include "fmt/format.h"

namespace shoal::bench {

double TrainingFlops(const plan::ModelSpec& spec, int64_t tokens) {
  return 3 * plan::ForwardFlops(spec, tokens);
}

double Utilisation(const plan::ModelSpec& spec, int64_t tokens, double seconds) {
  return TrainingFlops(spec, tokens) / seconds / kPeakFlops;
}

std::string UtilisationFormula() {
  return fmt::format(
      "Utilisation = 3 x (2 T [L (H (2 Q + 2 K) + 3 H I) + V H] + 2 L T^2 Q) / seconds / "
      "{:.0f}e12, "
      "with T tokens, L layers, H hidden, Q = heads x head size, K = key-value heads x head size, "
      "I intermediate, V vocabulary: forward once and backward twice, causal attention as half of "
      "its square, nothing for what is computed again, against the dense bf16 peak of H100 and "
      "H200.",
      kPeakFlops / 1e12);
}

}  // namespace shoal::bench
