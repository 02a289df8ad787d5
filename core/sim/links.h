// The transfers of one worker (or, with collectives, of all at once) in a step: gets started ahead
// of their use, pushes after it, one after the other on the links of core/sim/network.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/sim/network.h"
#include "core/sim/use_pattern.h"

namespace shoal::sim {

// Seconds on the link, by use of the pattern.
struct TransferTimes {
  std::vector<double> first_get;  // in the first microbatch; negative: nothing is fetched
  std::vector<double> later_get;
  std::vector<std::vector<double>> push;
  double latency = 0;
  bool one_link = true;
};
TransferTimes TransferTimesOf(const UsePattern& pattern, const TransferCosts& costs);
// Returns the longest of each: a collective takes as long as its slowest member.
TransferTimes SlowestOf(const std::vector<TransferTimes>& workers);

class Links {
 public:
  // Both arguments must outlive it.
  Links(const UsePattern& pattern, const TransferTimes& transfers)
      : pattern_(pattern),
        transfers_(transfers),
        arrivals_(pattern.uses.size() + static_cast<size_t>(pattern.prefetch_units) + 1, 0.0) {}

  // Call at the start of the step, and whenever it is known that more microbatches come.
  void ExpectUses(int64_t uses) { expected_ = uses; }
  void BeginStep() {
    Start(pattern_.keep_for_step ? static_cast<int64_t>(pattern_.uses.size())
                                 : pattern_.prefetch_units,
          0);
  }
  // The next use asks for its weights at `now`: starts its get and those that should be in flight
  // by then, and returns when the weights are there (0: they are held).
  double Get(double now) {
    Start(++asked_ + pattern_.prefetch_units, now);
    const double arrival = arrivals_[asked_slot_];
    asked_slot_ = After(asked_slot_, arrivals_.size());
    return arrival;
  }
  // Starts the i-th push of a use of the pattern at `now` and returns when it is acknowledged.
  double StartPush(size_t use, size_t i, double now) {
    double& link = transfers_.one_link ? get_link_ : push_link_;
    link = std::max(link, now) + transfers_.push[use][i];
    return link + transfers_.latency;
  }
  int64_t fetches() const { return fetches_; }

 private:
  static size_t After(size_t index, size_t size) { return index + 1 == size ? 0 : index + 1; }
  void Start(int64_t end, double now);

  const UsePattern& pattern_;
  const TransferTimes& transfers_;
  int64_t expected_ = 0;
  int64_t asked_ = 0;
  int64_t started_ = 0;           // gets before this use of the step have been started
  size_t started_use_ = 0;        // same as above, within its microbatch
  std::vector<double> arrivals_;  // of uses started and not yet asked for, in a ring
  size_t started_slot_ = 0;
  size_t asked_slot_ = 0;
  double get_link_ = 0;  // when it is free
  double push_link_ = 0;
  int64_t fetches_ = 0;
};

}  // namespace shoal::sim
