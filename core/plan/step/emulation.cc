#include "core/plan/step/emulation.h"

#include "core/base/check.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

DevicePace::DevicePace(const EmulateOptions& options) {
  const auto spec = NamedShape(options.shape);
  SHOAL_CHECK(spec.has_value());
  cost_ = FlopCost(*spec).Scaled(1 / options.device_flops);
  head_per_token_ = 6.0 * static_cast<double>(spec->vocabulary) *
                    static_cast<double>(spec->hidden) / options.device_flops;
}

UnitSeconds DevicePace::Units(std::span<const int64_t> sequence_tokens, int64_t layers) const {
  double total = cost_.per_microbatch;
  double tokens = 0;
  for (const int64_t sequence : sequence_tokens) {
    total += cost_.Sequence(sequence);
    tokens += static_cast<double>(sequence);
  }
  UnitSeconds seconds;
  seconds.head = head_per_token_ * tokens;
  const double block = (total - seconds.head) / static_cast<double>(layers);
  seconds.forward_block = block / 3;
  seconds.backward_block = block - seconds.forward_block;
  return seconds;
}

}  // namespace shoal::plan
