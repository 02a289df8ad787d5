#include "worker/ops/rotary_table.h"

#include <cmath>
#include <numbers>

namespace shoal::worker {

std::vector<double> RotaryFrequencies(const plan::ModelSpec& spec) {
  const int64_t half = spec.head_dim / 2;
  std::vector<double> frequencies(static_cast<size_t>(half));
  for (int64_t j = 0; j < half; ++j) {
    double frequency = std::pow(spec.rope_theta,
                                -2.0 * static_cast<double>(j) / static_cast<double>(spec.head_dim));
    if (spec.rope_scaling) {
      // Slow frequencies are divided by the factor, fast ones kept, those between blended.
      const plan::RopeScaling& scaling = *spec.rope_scaling;
      const auto original = static_cast<double>(scaling.original_max_positions);
      const double wavelength = 2.0 * std::numbers::pi / frequency;
      if (wavelength > original / scaling.low_frequency_factor) {
        frequency /= scaling.factor;
      } else if (wavelength >= original / scaling.high_frequency_factor) {
        const double smooth = (original / wavelength - scaling.low_frequency_factor) /
                              (scaling.high_frequency_factor - scaling.low_frequency_factor);
        frequency = (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
      }
    }
    frequencies[static_cast<size_t>(j)] = frequency;
  }
  return frequencies;
}

RotaryTable::RotaryTable(const plan::ModelSpec& spec) : frequencies_(RotaryFrequencies(spec)) {}

void RotaryTable::Reserve(int64_t positions) {
  if (positions <= positions_) {
    return;
  }
  cosines_.reserve(static_cast<size_t>(positions) * frequencies_.size());
  sines_.reserve(static_cast<size_t>(positions) * frequencies_.size());
  for (; positions_ < positions; ++positions_) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(positions_) * frequency;
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace shoal::worker
