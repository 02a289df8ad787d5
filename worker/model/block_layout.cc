#include "core/base/check.h"
#include "core/base/status.h"
#include "worker/model/block.h"

namespace shoal::worker {

using plan::Role;

BlockLayout MakeBlockLayout(const plan::UnitSpec& unit) {
  const auto offset = [&](Role role) -> int64_t {
    const plan::TensorSpec* tensor = unit.Find(role);
    return tensor == nullptr ? -1 : tensor->offset;
  };
  const auto follows = [&](Role next, Role tensor) {
    return offset(next) == offset(tensor) + unit.Find(tensor)->count();
  };
  SHOAL_CHECK(follows(Role::kK, Role::kQ) && follows(Role::kV, Role::kK) &&
              follows(Role::kUp, Role::kGate));
  return {.input_norm = offset(Role::kInputNorm),
          .qkv = offset(Role::kQ),
          .q_bias = offset(Role::kQBias),
          .k_bias = offset(Role::kKBias),
          .v_bias = offset(Role::kVBias),
          .q_norm = offset(Role::kQNorm),
          .k_norm = offset(Role::kKNorm),
          .output = offset(Role::kOutput),
          .output_bias = offset(Role::kOutputBias),
          .attention_output_norm = offset(Role::kAttentionOutputNorm),
          .mlp_norm = offset(Role::kMlpNorm),
          .gate_up = offset(Role::kGate),
          .gate_bias = offset(Role::kGateBias),
          .up_bias = offset(Role::kUpBias),
          .down = offset(Role::kDown),
          .down_bias = offset(Role::kDownBias),
          .mlp_output_norm = offset(Role::kMlpOutputNorm)};
}

absl::Status ValidateLayout(const plan::ModelSpec& spec) {
  for (const int64_t rows :
       {spec.attention().q_size(), spec.attention().kv_size(), spec.mlp().intermediate}) {
    if (rows * spec.hidden % plan::kTensorAlignment != 0) {
      return InvalidArgument(
          "model: a matrix of {} x {} is not a multiple of {} elements, which this worker needs",
          rows, spec.hidden, plan::kTensorAlignment);
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker
