// Records which of a numbered series have been seen, each exactly once: everything up to a
// watermark, and a bounded few beyond it that came out of order.
#pragma once

#include <cstdint>

#include "absl/container/btree_set.h"

namespace shoal::server {

class SequenceSet {
 public:
  enum class Outcome { kNew, kSeen, kTooFarAhead };

  // A client has at most as many pushes in flight as it was granted slots, so a gap this long is
  // not honest.
  static constexpr size_t kMaxAhead = 1024;

  // `number` counts from 1.
  Outcome Insert(int64_t number) {
    if (Contains(number)) {
      return Outcome::kSeen;
    }
    if (number != watermark_ + 1) {
      if (ahead_.size() >= kMaxAhead) {
        return Outcome::kTooFarAhead;
      }
      ahead_.insert(number);
      return Outcome::kNew;
    }
    ++watermark_;
    while (!ahead_.empty() && *ahead_.begin() == watermark_ + 1) {
      ahead_.erase(ahead_.begin());
      ++watermark_;
    }
    return Outcome::kNew;
  }

  bool Contains(int64_t number) const { return number <= watermark_ || ahead_.contains(number); }
  int64_t count() const { return watermark_ + static_cast<int64_t>(ahead_.size()); }

 private:
  int64_t watermark_ = 0;
  absl::btree_set<int64_t> ahead_;
};

}  // namespace shoal::server
