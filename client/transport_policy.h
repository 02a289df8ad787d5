// Decides which transports a client offers to one server. A transport rests if its connections keep
// breaking early, if it cannot be completed, or if it stopped working: it is not offered for a
// while, so that the run continues over the next one, and is tried again at the beginning of a
// step. Each rest is twice as long as the last, until a connection lasts.
//
// Pure: the caller brings the time. Not thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/time/time.h"
#include "client/options.h"

namespace shoal::client {

class TransportPolicy {
 public:
  explicit TransportPolicy(size_t transports, const TransportPolicyOptions& options = {})
      : options_(options), transports_(transports) {}

  // By transport: whether not to offer it now. Never all of them.
  std::vector<bool> LeftOut(absl::Time now) const;

  // Records a connection made over `transport`. `left_out` were not offered; `not_completed` were
  // taken by the server but failed on this side: those rest, as does a transport before `transport`
  // that was offered, had worked once, and was not taken. Returns those that begin a rest.
  std::vector<size_t> OnConnected(size_t transport, const std::vector<bool>& left_out,
                                  const std::vector<size_t>& not_completed, absl::Time now);
  // Records that its connection broke. True if it rests from now on.
  bool OnBroken(size_t transport, absl::Time now);
  // Records that no offer led to a connection: resting transports are offered again.
  void OnNoneConnected();

  // Whether a transport before `current` has rested and was not tried since.
  bool IsTryDue(size_t current, absl::Time now) const;

  // The end of its rest; in the past if it does not rest.
  absl::Time rests_until(size_t transport) const { return transports_[transport].rests_until; }

 private:
  struct Record {
    int breaks = 0;  // in a row
    int rests = 0;   // in a row
    bool to_try = false;
    absl::Time connected = absl::InfinitePast();
    absl::Time rests_until = absl::InfinitePast();
  };
  void Rest(Record& record, absl::Time now);

  TransportPolicyOptions options_;
  std::vector<Record> transports_;
};

}  // namespace shoal::client
