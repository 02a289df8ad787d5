// A transport that misbehaves within the contract (and beyond it where asked), driven by a seed:
// the same seed and sequence of events give the same delays, reorderings, losses and breaks.
// Decorates any transport; the data path stays that of the inner one, faults affect only events and
// posts.
//
// With dropped and repeated doorbells, broken connections and damage off it passes the conformance
// suite:
// any transport may do everything it then does. Regions, offers and answers are the inner
// transport's: a decorated side can talk to an undecorated one.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/transport/transport.h"

namespace shoal::transport {

struct FaultOptions {
  uint64_t seed = 1;

  // Probability that an event is held back, for up to max_delay. Within a connection writes still
  // complete in order, doorbells arrive in order and kClosed comes last.
  double delay_probability = 0;
  absl::Duration max_delay = absl::Milliseconds(5);

  // Completes a connection's reads in any order, and reorders completions against doorbells, and
  // connections against each other.
  bool reorder = false;

  // Doorbells lost while the connection lives. Beyond the letter of the contract, which allows loss
  // only when a connection breaks, but within its spirit: a doorbell is a hint. None are lost over
  // a transport without writes_in_order, where nobody takes data that did not ring.
  double drop_doorbell_probability = 0;

  // Repeats doorbells; also beyond the contract, and harmless to readers that take a doorbell for a
  // hint.
  double repeat_doorbell_probability = 0;

  // Breaks a connection, with Unavailable here, after this many posted operations; 0: never. The
  // peer sees it close.
  int64_t break_after_operations = 0;

  // Changes a byte of what this write among those of a connection that do not ring carries; 0: of
  // none. Such a write is a push's payload.
  int64_t damage_payload = 0;
  // The same among those that ring: a push's header.
  int64_t damage_header = 0;

  // Completions of a connection come no sooner than this rate allows; 0: no limit.
  int64_t bytes_per_second = 0;

  // Measures the delays. Must outlive the transport.
  Clock* clock = &RealClock();
};

std::unique_ptr<Transport> MakeFaultTransport(std::unique_ptr<Transport> inner,
                                              const FaultOptions& options);

}  // namespace shoal::transport
