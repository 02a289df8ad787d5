// A transport that misbehaves within (and, where asked, beyond) the contract, from a seed: what is
// delayed, reordered, dropped or broken is the same for the same seed and the same sequence of
// events. It decorates any transport; the data path stays that of the inner one, faults are made
// with its events and posts.
//
// With dropped and repeated doorbells and broken connections off it passes the conformance suite:
// everything it then does, any transport may do. Regions, offers and answers are the inner
// transport's: a decorated side talks to an undecorated one.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/transport/transport.h"

namespace shoal::transport {

struct FaultOptions {
  uint64_t seed = 1;

  // Each event is held back with this probability, for up to max_delay. Within a connection writes
  // complete in order, doorbells arrive in order and kClosed comes last, all the same.
  double delay_probability = 0;
  absl::Duration max_delay = absl::Milliseconds(5);

  // Reads of a connection complete in any order, and so do completions against doorbells, and
  // connections against each other.
  bool reorder = false;

  // Doorbells lost while the connection lives. Beyond the contract's letter, which allows loss when
  // a connection breaks, but within its spirit: a doorbell is a hint.
  double drop_doorbell_probability = 0;

  // Doorbells that come twice; beyond the contract as well, and as harmless to who takes it for a
  // hint.
  double repeat_doorbell_probability = 0;

  // A connection breaks, with Unavailable here, when this many operations have been posted on it; 0
  // for never. The peer sees it close.
  int64_t break_after_operations = 0;

  // Completions of a connection come no sooner than this rate allows; 0 for no limit.
  int64_t bytes_per_second = 0;

  // What delays are measured with. Must outlive the transport.
  Clock* clock = &RealClock();
};

std::unique_ptr<Transport> MakeFaultTransport(std::unique_ptr<Transport> inner,
                                              const FaultOptions& options);

}  // namespace shoal::transport
