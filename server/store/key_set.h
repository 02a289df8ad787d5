// Records which contribution keys (core/model/contribution.h) an attempt's sum contains, each
// exactly once: a bit for each key up to the highest seen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/testing/planted.h"

namespace shoal::server {

class KeySet {
 public:
  enum class Outcome { kNew, kSeen, kTooLarge };

  // 128 KiB of bits. No step has as many packs; whoever sends more is not honest.
  static constexpr int64_t kMaxKey = int64_t{1} << 20;

  // Keys count from 1.
  Outcome Insert(int64_t key) {
    if (key > kMaxKey) {
      return Outcome::kTooLarge;
    }
    if (Contains(key) && !SHOAL_PLANTED("key-twice")) {
      return Outcome::kSeen;
    }
    bits_.resize(std::max(bits_.size(), WordOf(key) + 1));
    bits_[WordOf(key)] |= BitOf(key);
    ++count_;
    return Outcome::kNew;
  }

  bool Contains(int64_t key) const {
    return WordOf(key) < bits_.size() && (bits_[WordOf(key)] & BitOf(key)) != 0;
  }
  int64_t count() const { return count_; }

  // Keeps its memory for the next attempt.
  void Clear() {
    std::fill(bits_.begin(), bits_.end(), 0);
    count_ = 0;
  }

 private:
  static size_t WordOf(int64_t key) { return static_cast<size_t>(key) / 64; }
  static uint64_t BitOf(int64_t key) { return uint64_t{1} << (static_cast<uint64_t>(key) % 64); }

  std::vector<uint64_t> bits_;
  int64_t count_ = 0;
};

}  // namespace shoal::server
