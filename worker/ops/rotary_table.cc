#include "worker/ops/rotary_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::worker {

namespace {

// Slow frequencies are divided by the factor, fast ones kept, those between blended.
double Llama3Frequency(const plan::RopeScaling& scaling, double frequency) {
  const auto original = static_cast<double>(scaling.original_max_positions);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength > original / scaling.low_frequency_factor) {
    return frequency / scaling.factor;
  }
  if (wavelength >= original / scaling.high_frequency_factor) {
    const double smooth = (original / wavelength - scaling.low_frequency_factor) /
                          (scaling.high_frequency_factor - scaling.low_frequency_factor);
    return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
  }
  return frequency;
}

// The same by the frequency's number: those between the one that turns beta_fast times in the
// original length and the one that turns beta_slow times are blended.
double YarnFrequency(const plan::Rope& rope, int64_t rotary_dims, int64_t j, double frequency) {
  const plan::RopeScaling& scaling = *rope.scaling;
  const auto dims = static_cast<double>(rotary_dims);
  const auto number = [&](double turns) {
    const auto original = static_cast<double>(scaling.original_max_positions);
    return dims * std::log(original / (2.0 * std::numbers::pi * turns)) /
           (2.0 * std::log(rope.theta));
  };
  double low = number(scaling.beta_fast);
  double high = number(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1.0);
  const double divided =
      std::clamp((static_cast<double>(j) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
  return frequency * (1.0 - divided) + frequency / scaling.factor * divided;
}

bool TakesLongDivisors(const plan::RopeScaling& scaling, int64_t longest) {
  return longest > scaling.original_max_positions;
}

}  // namespace

std::vector<double> RotaryFrequencies(const plan::Rope& rope, int64_t dims, int64_t longest) {
  const int64_t half = dims / 2;
  std::vector<double> frequencies(static_cast<size_t>(half));  // zero: a turn by nothing is exact
  for (int64_t j = 0; j < half && rope.turns; ++j) {
    double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(j) / static_cast<double>(dims));
    if (rope.scaling) {
      switch (rope.scaling->type) {
        case plan::RopeType::kLlama3:
          frequency = Llama3Frequency(*rope.scaling, frequency);
          break;
        case plan::RopeType::kLinear:
          frequency /= rope.scaling->factor;
          break;
        case plan::RopeType::kYarn:
          frequency = YarnFrequency(rope, dims, j, frequency);
          break;
        case plan::RopeType::kLongRope:
          frequency /= (TakesLongDivisors(*rope.scaling, longest)
                            ? rope.scaling->long_divisors
                            : rope.scaling->short_divisors)[static_cast<size_t>(j)];
          break;
      }
    }
    frequencies[static_cast<size_t>(j)] = frequency;
  }
  return frequencies;
}

RotaryTable::RotaryTable(const plan::Rope& rope, int64_t head_dim, Device& device)
    : rope_(rope),
      dims_(rope.dims > 0 ? rope.dims : head_dim),
      frequencies_(RotaryFrequencies(rope, dims_)),
      factor_(rope.scaling ? rope.scaling->attention_factor : 1.0),
      device_(device) {}

void RotaryTable::ChooseFor(int64_t longest) {
  if (rope_.scaling && rope_.scaling->type == plan::RopeType::kLongRope) {
    LogInfo("longrope: {}_factor, as sequences have up to {} tokens and the original length is {}",
            TakesLongDivisors(*rope_.scaling, longest) ? "long" : "short", longest,
            rope_.scaling->original_max_positions);
  }
  std::vector<double> frequencies = RotaryFrequencies(rope_, dims_, longest);
  if (frequencies != frequencies_) {
    frequencies_ = std::move(frequencies);
    positions_ = 0;
  }
}

absl::Status RotaryTable::Reserve(int64_t positions, Stream& stream) {
  if (positions <= positions_) {
    return absl::OkStatus();
  }
  const int64_t capacity = std::max(positions, 2 * positions_);
  std::vector<float> cosines;
  std::vector<float> sines;
  for (int64_t position = positions_; position < capacity; ++position) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) * frequency;
      cosines.push_back(static_cast<float>(factor_ * std::cos(angle)));
      sines.push_back(static_cast<float>(factor_ * std::sin(angle)));
    }
  }
  const auto bytes_of = [this](int64_t rows) {
    return rows * static_cast<int64_t>(frequencies_.size() * sizeof(float));
  };
  const int64_t sines_at = RoundUp(bytes_of(capacity), kBufferAlignment);
  SHOAL_ASSIGN_OR_RETURN(Buffer grown, device_.Allocate(sines_at + bytes_of(capacity)));
  const int64_t had = bytes_of(positions_);
  const int64_t added = bytes_of(capacity - positions_);
  stream.Copy(grown.data(), tables_.data(), had);
  stream.Copy(grown.data() + had, cosines.data(), added);
  stream.Copy(grown.data() + sines_at, tables_.data() + sines_at_, had);
  stream.Copy(grown.data() + sines_at + had, sines.data(), added);
  SHOAL_RETURN_IF_ERROR(stream.Synchronize());
  tables_ = std::move(grown);
  sines_at_ = sines_at;
  positions_ = capacity;
  return absl::OkStatus();
}

RotaryTables::RotaryTables(const plan::ModelSpec& spec, Device& device) {
  std::vector<plan::Rope> ropes;  // parallel to tables_
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const plan::Attention& attention = spec.block(layer).attention;
    const auto table = std::ranges::find(ropes, attention.rope);
    table_of_layer_.push_back(static_cast<size_t>(table - ropes.begin()));
    if (table == ropes.end()) {
      ropes.push_back(attention.rope);
      tables_.emplace_back(attention.rope, attention.head_dim, device);
    }
  }
}

void RotaryTables::ChooseFor(int64_t longest) {
  for (RotaryTable& table : tables_) {
    table.ChooseFor(longest);
  }
}

absl::Status RotaryTables::Reserve(int64_t positions, Stream& stream) {
  for (RotaryTable& table : tables_) {
    SHOAL_RETURN_IF_ERROR(table.Reserve(positions, stream));
  }
  return absl::OkStatus();
}

int64_t RotaryTables::bytes() const {
  int64_t bytes = 0;
  for (const RotaryTable& table : tables_) {
    bytes += table.bytes();
  }
  return bytes;
}

}  // namespace shoal::worker
