// The activation functions of gated MLPs: down(act(gate x) * up x).
#pragma once

#include <cstdint>

namespace shoal::plan {

enum class Gate : uint8_t {
  kSilu,      // x sigmoid(x)
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
};

}  // namespace shoal::plan
