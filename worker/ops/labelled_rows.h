// What the loss is taken of, and where it goes: plain views of device memory, for host and device
// code alike.
#pragma once

#include <cstdint>

namespace shoal::worker {

// The labels of the first `count` rows of logits, and what each row counts for.
struct LabelledRows {
  const int32_t* labels = nullptr;  // [count], each in [0, V)
  const float* weights = nullptr;   // [count], finite; may be 0 or negative
  int64_t count = 0;
};

struct LossOut {
  double* sum = nullptr;
  float* log_probabilities = nullptr;  // [count], of the labels, unweighted; null: nowhere
  // Leaves out the rows before `row`.
  LossOut From(int64_t row) const {
    return {sum, log_probabilities == nullptr ? nullptr : log_probabilities + row};
  }
};

}  // namespace shoal::worker
