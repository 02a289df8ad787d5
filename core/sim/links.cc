#include "core/sim/links.h"

#include <algorithm>

namespace shoal::sim {

TransferTimes TransferTimesOf(const UsePattern& pattern, const TransferCosts& costs) {
  TransferTimes times{.latency = costs.latency, .one_link = costs.one_link};
  const auto get = [&](int64_t bytes) {
    return bytes > 0 ? static_cast<double>(bytes) * costs.get_seconds_per_byte : -1;
  };
  for (const Use& use : pattern.uses) {
    times.first_get.push_back(get(use.first_get_bytes));
    times.later_get.push_back(get(use.later_get_bytes));
    std::vector<double>& pushes = times.push.emplace_back();
    for (const Push& push : use.pushes) {
      pushes.push_back(static_cast<double>(push.bytes) * costs.push_seconds_per_byte);
    }
  }
  return times;
}

TransferTimes SlowestOf(const std::vector<TransferTimes>& workers) {
  TransferTimes slowest = workers.front();
  const auto raise = [](std::vector<double>& a, const std::vector<double>& b) {
    std::transform(a.begin(), a.end(), b.begin(), a.begin(),
                   [](double x, double y) { return std::max(x, y); });
  };
  for (const TransferTimes& worker : workers) {
    raise(slowest.first_get, worker.first_get);
    raise(slowest.later_get, worker.later_get);
    for (size_t k = 0; k < slowest.push.size(); ++k) {
      raise(slowest.push[k], worker.push[k]);
    }
    slowest.latency = std::max(slowest.latency, worker.latency);
  }
  return slowest;
}

void Links::Start(int64_t end, double now) {
  for (const int64_t until = std::min(end, expected_); started_ < until; ++started_) {
    const bool first = started_ < static_cast<int64_t>(pattern_.uses.size());
    const double seconds = (first ? transfers_.first_get : transfers_.later_get)[started_use_];
    double arrival = 0;
    if (seconds >= 0) {
      get_link_ = std::max(get_link_, now) + seconds;
      arrival = get_link_ + transfers_.latency;
      ++fetches_;
    }
    arrivals_[started_slot_] = arrival;
    started_slot_ = After(started_slot_, arrivals_.size());
    started_use_ = After(started_use_, pattern_.uses.size());
  }
}

}  // namespace shoal::sim
