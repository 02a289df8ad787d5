// When something that serves one user at a time is busy: a calendar that gives each user the first
// gap that is long enough.
#pragma once

#include <algorithm>
#include <iterator>
#include <map>

namespace shoal::plan {

class BusyTimes {
 public:
  // Takes `length` at the first time, not before `from`, at which that much is free; returns that
  // time. Adjacent entries merge, so this visits as many entries as there are gaps that are too
  // short.
  double Take(double from, double length) {
    double begin = from;
    auto next = ends_.upper_bound(from);
    if (next != ends_.begin()) {
      begin = std::max(begin, std::prev(next)->second);
    }
    for (; next != ends_.end() && next->first < begin + length; ++next) {
      begin = std::max(begin, next->second);
    }
    if (length > 0) {
      Add(begin, begin + length);
    }
    return begin;
  }

 private:
  void Add(double begin, double end) {
    auto next = ends_.lower_bound(begin);
    if (next != ends_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
      next = std::prev(next);
    } else {
      next = ends_.emplace_hint(next, begin, end);
    }
    if (const auto after = std::next(next); after != ends_.end() && after->first == end) {
      next->second = after->second;
      ends_.erase(after);
    }
  }

  std::map<double, double> ends_;  // by start; never adjacent
};

}  // namespace shoal::plan
