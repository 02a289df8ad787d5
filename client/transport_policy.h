// Which transports a client offers to one server. A transport whose connections keep breaking soon
// after they were made, that cannot be completed, or that worked and does not any more, rests: it
// is left out of offers for a while, so that the run goes on over the next one, and is then tried
// again, at the beginning of a step. Each rest is twice as long as the one before, until a
// connection has lasted.
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

  // By transport: not to be offered now. Never all of them.
  std::vector<bool> LeftOut(absl::Time now) const;

  // A connection was made over `transport`. `left_out` is what was not offered, `not_completed`
  // what the server took before and this side could not complete: those rest, as does a transport
  // before `transport` that was offered, had worked once, and that the server did not take. Gives
  // those that begin to.
  std::vector<size_t> OnConnected(size_t transport, const std::vector<bool>& left_out,
                                  const std::vector<size_t>& not_completed, absl::Time now);
  // The connection over it broke. True if it rests from now on.
  bool OnBroken(size_t transport, absl::Time now);
  // No connection could be made with what was offered: whatever rests is offered again.
  void OnNoneConnected();

  // A transport before `current` has rested and was not tried since.
  bool IsTryDue(size_t current, absl::Time now) const;

  // Until when it rests; in the past if it does not.
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
