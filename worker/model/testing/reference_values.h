// The weights of tests/references, which are not stored: an element follows from the name of its
// tensor in files and from its place there.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/model/model_spec.h"

namespace shoal::worker::testing_model {

// Element i of what make_families.py calls value_of(name).
inline double ValueOf(const std::string& name, int64_t i) {
  uint64_t state = 0xcbf29ce484222325;
  for (const char byte : name) {
    state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  uint64_t z = state + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  const uint64_t total =
      (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48 & 0xffff);
  return (static_cast<double>(total) / 65536 - 2) * 0.519615;
}

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
        out[static_cast<size_t>(at)] =
            static_cast<float>(mean + ValueOf(tensor.stored.name, tensor.stored_offset() + i));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker::testing_model
