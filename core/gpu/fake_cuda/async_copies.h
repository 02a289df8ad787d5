// A thread's asynchronous copies to shared memory. They are done when the thread waits for them,
// not before: until then their destinations hold 0xFF. Only the fake includes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/gpu/fake_cuda/races.h"

namespace shoal::gpu::fake_cuda {

class AsyncCopies {
 public:
  void Clear() {
    copies_.clear();
    groups_.clear();
  }

  void Begin(void* to, const void* from, size_t bytes, size_t read) {
    Reads(from, read);
    Writes(to, bytes);
    std::memset(to, 0xFF, bytes);
    copies_.push_back({to, from, bytes, read});
  }

  void Commit() { groups_.push_back(copies_.size()); }

  // Waits until all groups except that many of the newest are done.
  void Wait(int newest_left) {
    const auto left = static_cast<size_t>(newest_left);
    if (groups_.size() <= left) {
      return;
    }
    const auto groups = static_cast<int64_t>(groups_.size() - left);
    const size_t end = groups_[static_cast<size_t>(groups - 1)];
    for (size_t i = 0; i < end; ++i) {
      const Copy& copy = copies_[i];
      Writes(copy.to, copy.bytes);
      std::memset(copy.to, 0, copy.bytes);
      if (copy.read > 0) {
        std::memcpy(copy.to, copy.from, copy.read);
      }
    }
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<int64_t>(end));
    groups_.erase(groups_.begin(), groups_.begin() + groups);
    for (size_t& group : groups_) {
      group -= end;
    }
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    size_t read;
  };

  std::vector<Copy> copies_;
  std::vector<size_t> groups_;  // index of their ends in copies_
};

}  // namespace shoal::gpu::fake_cuda
