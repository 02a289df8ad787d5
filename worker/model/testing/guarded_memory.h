// Memory for a stage's data, in tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/bytes.h"
#include "gtest/gtest.h"

namespace shoal::worker::testing_model {

// Memory of exactly that many bytes, filled with values that no computation can use when it begins
// and when it ends; detects writes past its end.
class GuardedMemory {
 public:
  explicit GuardedMemory(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        data_(static_cast<std::byte*>(std::aligned_alloc(64, RoundUp(bytes, 64) + 64))) {
    std::memset(data_, 0xFF, bytes_ + kGuard);  // NaN in fp32, bf16 and double
  }
  ~GuardedMemory() {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(data_[bytes_ + i], std::byte{0xFF}) << "written behind the end";
    }
    std::memset(data_, 0xFF, bytes_);
    std::free(data_);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  std::byte* data() const { return data_; }

  // Moves the contents elsewhere; the old memory is void.
  static std::unique_ptr<GuardedMemory> Moved(std::unique_ptr<GuardedMemory> from) {
    auto to = std::make_unique<GuardedMemory>(static_cast<int64_t>(from->bytes_));
    std::memcpy(to->data_, from->data_, from->bytes_);
    return to;
  }

 private:
  static constexpr size_t kGuard = 64;
  const size_t bytes_;
  std::byte* const data_;
};

}  // namespace shoal::worker::testing_model
