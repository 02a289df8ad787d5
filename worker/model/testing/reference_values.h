// The weights of tests/references, which are not stored: an element follows from the name of its
// tensor in files and from its place there.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/base/testing/reference_value.h"
#include "core/model/model_spec.h"

namespace shoal::worker::testing_model {

// A model's weights; `out` is zero where nothing is.
inline absl::Status ReadReference(const plan::ModelSpec& spec, int unit, int64_t offset,
                                  std::span<float> out) {
  // Not by what the family says, which is what is tested.
  const double norm = spec.family.starts_with("gemma") ? 0.0 : 1.0;
  const std::vector<plan::UnitSpec> units = plan::BuildUnits(spec);
  for (const plan::TensorSpec& tensor : units[static_cast<size_t>(unit)].tensors) {
    const double mean = plan::IsNorm(tensor.role) ? norm : 0.0;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const int64_t at = tensor.offset + i - offset;
      if (at >= 0 && at < std::ssize(out)) {
        out[static_cast<size_t>(at)] = static_cast<float>(
            mean + ReferenceValue(tensor.stored.name, tensor.stored_offset() + i));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker::testing_model
