// Cosines and sines of rotary embedding, by position and frequency: computed on the host in double,
// once, and grown as longer sequences come. Pairs are (j, j + head_dim / 2), as in Hugging Face's
// Llama and Qwen2.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/model_spec.h"

namespace shoal::worker {

// Angle per position of each of the head_dim / 2 frequencies, Llama 3's scaling applied where the
// model has it.
std::vector<double> RotaryFrequencies(const plan::ModelSpec& spec);

class RotaryTable {
 public:
  explicit RotaryTable(const plan::ModelSpec& spec);

  // Makes sure that positions [0, positions) are there; pointers taken before are void if the table
  // grows.
  void Reserve(int64_t positions);
  const float* cosines() const { return cosines_.data(); }  // [positions, head_dim / 2]
  const float* sines() const { return sines_.data(); }

 private:
  const std::vector<double> frequencies_;
  int64_t positions_ = 0;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace shoal::worker
