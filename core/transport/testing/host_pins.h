// Emulates how a GPU's driver pins host memory, for tests' GPUs; as strict as the real one.
//
//   GPU                          memory mapped for writing   memory mapped read-only
//   cannot pin read-only (x86)   for writing: yes            for writing: invalid
//                                                            for reading: unsupported
//   can pin read-only            both                        for writing: invalid
//                                                            for reading: yes
//
// No range may overlap another, and no copy may cross the end of one: the driver looks up where a
// copy begins and refuses it if it is not entirely within that range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>

#include "absl/status/status.h"
#include "core/base/memory/memory_map.h"
#include "core/base/status.h"

namespace shoal::transport {

// Not thread-safe.
class HostPins {
 public:
  explicit HostPins(bool pins_read_only) : pins_read_only_(pins_read_only) {}

  bool pins_read_only() const { return pins_read_only_; }
  size_t count() const { return pinned_.size(); }

  absl::Status Pin(std::span<const std::byte> memory, bool writable) {
    if (!writable && !pins_read_only_) {
      return Unimplemented("operation not supported");
    }
    if (memory.empty() || (writable && !MappedForWriting(memory))) {
      return InvalidArgument("invalid argument");
    }
    if (Overlapping(memory) != nullptr) {
      return Internal("part or all of it is pinned already");
    }
    pinned_[memory.data()] = memory.size();
    return absl::OkStatus();
  }
  // False if it was not pinned.
  bool Unpin(const std::byte* begin) { return pinned_.erase(begin) == 1; }

  bool Pinned(std::span<const std::byte> memory) const { return Overlapping(memory) != nullptr; }

  // Checks the end of a copy that lies on the host.
  absl::Status CheckCopy(std::span<const std::byte> memory) const {
    const auto* const range = Overlapping(memory);
    if (range != nullptr && (memory.data() < range->first ||
                             memory.data() + memory.size() > range->first + range->second)) {
      return InvalidArgument("a copy crosses the end of pinned memory");
    }
    return absl::OkStatus();
  }

 private:
  using Ranges = std::map<const std::byte*, size_t>;
  // Returns the last range that overlaps it; null if none does.
  const Ranges::value_type* Overlapping(std::span<const std::byte> memory) const {
    auto after = pinned_.lower_bound(memory.data() + memory.size());
    if (after == pinned_.begin()) {
      return nullptr;
    }
    const Ranges::value_type& before = *std::prev(after);
    return before.first + before.second > memory.data() ? &before : nullptr;
  }

  bool pins_read_only_;
  Ranges pinned_;
};

}  // namespace shoal::transport
