// Where the model's runner gets weights from and puts gradients: the seam between the mathematics
// and the service. The trainer implements it over the client library (fetch on demand, push
// behind); tests, `shoal generate` and `shoal eval` implement it over weights in memory.
//
// Weights and accumulators are memory of the model's device. All that touches them is work on the
// model's one compute stream, which on a GPU runs later than the calls here: a call says what has
// been PUT on that stream, not what is done. So a source or sink over such a device knows the
// stream, and orders by its events what it does with the memory itself: it lets the stream wait for
// what it copies to the device, and waits for the stream before it reuses memory or reads a
// gradient. On the CPU what is put is done, and there is nothing to order. Work that fails on the
// device is known by the stream's events, the microbatch's loss at the latest; the attempt is then
// to be dropped whole, with what was pushed of it.
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
  // Blocks until the unit's weights of this step's version are there, or will be for what is put on
  // the compute stream from now on. Valid until Release(unit). Calls nest: each Get needs one
  // Release, and a unit may be held more than once (the tied embedding is, at the head).
  virtual absl::StatusOr<WeightsView> Get(int unit) = 0;
  // The last use is on the compute stream. The weights must stay until the work that is on it now
  // is done.
  virtual void Release(int unit) = 0;
};

// Where a contribution to a unit's gradient goes: the unit's flat vector in fp32.
struct UnitGradient {
  std::span<float> sums;
  // Nothing has been added yet and what is there is undefined: the contribution writes all of it,
  // padding included, instead of adding. That spares the device zeros that are written, and read.
  bool empty = false;
};

// A unit's gradient of a microbatch comes in one contribution, but with tied embeddings unit 0's
// comes in two: the head's, of the matrix it shares, and the embedding's own. Each is asked for,
// added and done with by itself, so that it does not matter whether one worker makes both. What is
// added up before it goes on, contributions and microbatches alike, is the sink's to decide.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // The fp32 buffer into which a contribution to the unit's gradient is to be ADDED (the caller
  // must accumulate, never overwrite) by work on the compute stream; the sink hands it out zeroed
  // the first time, before that work. It keeps its place until Done(unit). The host must not touch
  // it where the device's memory is out of its reach.
  virtual absl::StatusOr<std::span<float>> Accumulator(int unit) = 0;
  // The same for a caller that can write as well as add, which is told which of them to do. A sink
  // that knows no better hands out zeros to be added to.
  virtual absl::StatusOr<UnitGradient> Gradient(int unit);
  // All work of the contribution is on the compute stream: it is in the accumulator once what is on
  // the stream now is done.
  virtual absl::Status Done(int unit) = 0;
};

inline absl::StatusOr<UnitGradient> GradientSink::Gradient(int unit) {
  absl::StatusOr<std::span<float>> accumulator = Accumulator(unit);
  if (!accumulator.ok()) {
    return std::move(accumulator).status();
  }
  return UnitGradient{.sums = *accumulator};
}

}  // namespace shoal::worker
