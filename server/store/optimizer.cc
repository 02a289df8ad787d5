#include "server/store/optimizer.h"

#include <cmath>

namespace shoal::server {

UpdateScalars MakeUpdateScalars(const OptimizerOptions& options, int64_t step, double learning_rate,
                                double clip_coefficient) {
  const auto exponent = static_cast<double>(step);
  const double bias_correction1 =
      options.kind == plan::Optimizer::kLion ? 1 : 1 - std::pow(options.beta1, exponent);
  return {
      .clip = static_cast<float>(clip_coefficient),
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .bias_correction2_sqrt = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, exponent))),
      .epsilon = static_cast<float>(options.epsilon),
      .step_size = static_cast<float>(learning_rate / bias_correction1),
      .decay_factor = static_cast<float>(1 - learning_rate * options.weight_decay),
      .draws = static_cast<uint32_t>(step) * 0x9E3779B9U};
}

const OptimizerKernels& GetOptimizerKernels(plan::Optimizer kind, KernelWidth width) {
  switch (kind) {
    case plan::Optimizer::kAdamW:
      break;
    case plan::Optimizer::kAdamW8:
      return GetAdamW8Kernels(width);
    case plan::Optimizer::kLion:
      return GetLionKernels(width);
  }
  return GetAdamWKernels(width);
}

}  // namespace shoal::server
