// Where the model's runner gets weights from and puts gradients: the seam between the mathematics
// and the service. The trainer implements it over the client library (fetch on demand, push
// behind); tests, `shoal generate` and `shoal eval` implement it over weights in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"

namespace shoal::worker {

// A unit's flat vector (plan::UnitSpec) in compute type: `data` points to float or BFloat16
// elements.
struct WeightsView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t count = 0;
};

class UnitSource {
 public:
  virtual ~UnitSource() = default;
  // Blocks until the unit's weights of this step's version are there. Valid until Release(unit).
  // Calls nest: each Get needs one Release, and a unit may be held more than once (the tied
  // embedding is, at the head).
  virtual absl::StatusOr<WeightsView> Get(int unit) = 0;
  virtual void Release(int unit) = 0;
};

// A unit's gradient of a microbatch comes in one contribution, but with tied embeddings unit 0's
// comes in two: the head's, of the matrix it shares, and the embedding's own. Each is asked for,
// added and done with by itself, so that it does not matter whether one worker makes both. What is
// added up before it goes on, contributions and microbatches alike, is the sink's to decide.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // The fp32 buffer into which a contribution to the unit's gradient is to be ADDED (the caller
  // must accumulate, never overwrite); the sink hands it out zeroed the first time. It keeps its
  // place until Done(unit).
  virtual absl::StatusOr<std::span<float>> Accumulator(int unit) = 0;
  // The contribution is in the accumulator.
  virtual absl::Status Done(int unit) = 0;
};

}  // namespace shoal::worker
