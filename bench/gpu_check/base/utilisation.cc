#include "bench/gpu_check/base/utilisation.h"

#include "fmt/format.h"

namespace shoal::bench {

double TrainingFlops(const plan::ModelSpec& spec, int64_t tokens, int64_t sequences) {
  return 3 * static_cast<double>(sequences) * plan::ForwardFlops(spec, tokens / sequences);
}

double Utilisation(double flops, double seconds) { return flops / seconds / kPeakFlops; }

std::string UtilisationFormula() {
  return fmt::format(
      "Utilisation = 3 x (2 T [L (H (2 Q + 2 K) + 3 H I) + V H] + 2 L T S Q) / seconds / "
      "{:.0f}e12, with T tokens in sequences of S, L layers, H hidden, Q = heads x head size, K = "
      "key-value heads x head size, I intermediate, V vocabulary: forward once and backward twice, "
      "causal attention as half of its square, nothing for what is computed again, against the "
      "dense bf16 peak of H100 and H200.",
      kPeakFlops / 1e12);
}

}  // namespace shoal::bench
