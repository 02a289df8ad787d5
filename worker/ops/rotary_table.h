// Cosines and sines of rotary embedding, by position and frequency, in device memory: computed once
// on the host in double, and extended as longer sequences come.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "core/model/model_spec.h"
#include "worker/backend/backend.h"
#include "worker/ops/ops.h"

namespace shoal::worker {

// Returns the angle per position of each of the `dims` / 2 frequencies, for sequences of up to
// `longest` tokens.
std::vector<double> RotaryFrequencies(const plan::Rope& rope, int64_t dims, int64_t longest = 0);

class RotaryTable {
 public:
  RotaryTable(const plan::Rope& rope, int64_t head_dim, Device& device);

  // Ensures that the table has positions [0, positions) for work put on `stream` from now on. If it
  // grows, invalidates earlier pointers and waits for the stream, the only one that may use the
  // table. ResourceExhausted if the device has no memory; the table is then unchanged.
  absl::Status Reserve(int64_t positions, Stream& stream);
  // Makes it one for sequences of up to `longest` tokens, without positions if that makes a
  // difference. Without it, one for those that the model was first trained on. No work that uses
  // the table may be under way.
  void ChooseFor(int64_t longest);
  // [positions, rotary dimensions / 2], device
  const float* cosines() const { return reinterpret_cast<const float*>(tables_.data()); }
  const float* sines() const { return reinterpret_cast<const float*>(tables_.data() + sines_at_); }
  Rotation At(const int32_t* positions) const {
    return {.positions = positions, .cosines = cosines(), .sines = sines(), .dims = rope_.dims};
  }
  int64_t bytes() const { return tables_.bytes(); }  // of the device

 private:
  const plan::Rope rope_;
  const int64_t dims_;
  std::vector<double> frequencies_;
  const double factor_;  // of cosines and sines
  Device& device_;
  int64_t positions_ = 0;
  int64_t sines_at_ = 0;  // bytes
  Buffer tables_;
};

// The tables of a model's layers: one for each plan::Rope that it has.
class RotaryTables {
 public:
  RotaryTables(const plan::ModelSpec& spec, Device& device);

  // Same as RotaryTable's, for all of them.
  void ChooseFor(int64_t longest);
  absl::Status Reserve(int64_t positions, Stream& stream);
  const RotaryTable& of(int64_t layer) const {
    return tables_[table_of_layer_[static_cast<size_t>(layer)]];
  }
  int64_t bytes() const;

 private:
  std::deque<RotaryTable> tables_;
  std::vector<size_t> table_of_layer_;
};

}  // namespace shoal::worker
