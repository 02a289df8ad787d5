// Where the model's runner gets weights from and puts gradients: the seam between the mathematics
// and the service. The trainer implements it over the client library (fetch on demand, push
// behind); tests, `shoal generate` and `shoal eval` implement it over weights in memory.
//
// Weights and accumulators are memory of the model's device. Only work on the model's single
// compute stream touches them, and on a GPU that work runs later than the calls here: a call says
// what has been ENQUEUED on that stream, not what is done. So a source or sink over such a device
// knows the stream, and orders its own use of the memory by the stream's events: it makes the
// stream wait for what it copies to the device, and waits for the stream before it reuses memory or
// reads a gradient. On the CPU what is enqueued is done, and there is nothing to order.
//
// The stream's events report work that fails on the device, at the latest the one of the
// microbatch's loss; the whole attempt must then be dropped, including what was pushed of it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"

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
  // Blocks until the unit's weights of this step's version are there, or will be for work put on
  // the compute stream from now on. Valid until Release(unit). Calls nest: each Get needs one
  // Release, and a unit may be held more than once (the tied embedding is, at the head).
  virtual absl::StatusOr<WeightsView> Get(int unit) = 0;
  // Call when the last use is on the compute stream. The weights must stay until the work that is
  // on it now is done.
  virtual void Release(int unit) = 0;
};

// Where a contribution to a unit's gradient goes: the unit's flat vector in fp32.
struct UnitGradient {
  std::span<float> sums;
  // Nothing has been added yet and the content is undefined: the contribution writes everything,
  // including padding, instead of adding. That spares the device writing and reading zeros.
  bool empty = false;
};

// A unit's gradient of a microbatch comes in one contribution; with tied embeddings unit 0's comes
// in two: the head's, of the matrix that it shares, and the embedding's own. Each is requested,
// added and finished separately, so that it does not matter whether one worker makes both. The sink
// decides what to add up before passing it on, contributions and microbatches alike.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Whether a gradient of the unit, to which the backward has come, is wanted. Of what is frozen
  // none is: nobody computes it, and nothing but Done is called for it.
  virtual bool Wants(int /*unit*/) { return true; }
  // Returns the fp32 buffer to which work on the compute stream must ADD a contribution to the
  // unit's gradient (the caller must accumulate, never overwrite). The sink zeroes it the first
  // time, before that work. It stays in place until Done(unit). The host must not touch it if the
  // device's memory is out of its reach.
  virtual absl::StatusOr<std::span<float>> Accumulator(int unit) = 0;
  // Same as above, for a caller that can write as well as add and is told which to do. By default
  // the sink returns zeros to be added to.
  virtual absl::StatusOr<UnitGradient> Gradient(int unit);
  // Call when all work of the contribution is on the compute stream: it is in the accumulator once
  // what is on the stream now is done. Of a unit that is not wanted: when the backward is through
  // it.
  virtual absl::Status Done(int unit) = 0;
  // Same, of the head's contribution to the embedding's matrix, where they share it and its
  // gradient is wanted.
  virtual absl::Status DoneTied() { return Done(0); }
  // What follows is of this pack (by its number in the step).
  virtual void AtPack(int64_t /*number*/) {}
};

inline absl::StatusOr<UnitGradient> GradientSink::Gradient(int unit) {
  absl::StatusOr<std::span<float>> accumulator = Accumulator(unit);
  if (!accumulator.ok()) {
    return std::move(accumulator).status();
  }
  return UnitGradient{.sums = *accumulator};
}

}  // namespace shoal::worker
