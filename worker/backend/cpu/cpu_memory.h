// Memory of this process within a budget: what the CPU device and its host memory share. Only
// worker/backend/cpu includes it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

// `Base` is Memory or Device.
template <typename Base>
class CpuMemory : public Base {
 public:
  // `advice` says what to do if the budget does not suffice.
  CpuMemory(std::string name, std::string advice, int64_t budget_bytes)
      : name_(std::move(name)), advice_(std::move(advice)), budget_bytes_(budget_bytes) {}
  ~CpuMemory() override { SHOAL_CHECK(allocated_bytes() == 0); }

  std::string_view name() const override { return name_; }

  absl::StatusOr<Buffer> Allocate(int64_t bytes) override {
    SHOAL_CHECK(bytes > 0);
    const int64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kBufferAlignment;
    {
      absl::MutexLock lock(&mutex_);
      if (budget_bytes_ > 0 && bytes > budget_bytes_ - allocated_) {
        return ResourceExhausted("{} memory: {} B asked for, {} of {} B in use; {}", name_, bytes,
                                 allocated_, budget_bytes_, advice_);
      }
      allocated_ += bytes;
      peak_ = std::max(peak_, allocated_);
    }
    void* data = std::aligned_alloc(static_cast<size_t>(alignment),
                                    static_cast<size_t>(RoundUp(bytes, alignment)));
    if (data == nullptr) {
      absl::MutexLock lock(&mutex_);
      allocated_ -= bytes;
      return ResourceExhausted("{} memory: the machine has no {} B left; lower microbatch_tokens",
                               name_, bytes);
    }
    if (alignment == kHugePageBytes) {
      madvise(data, static_cast<size_t>(bytes),
              MADV_HUGEPAGE);  // a hint: refusal only costs speed
    }
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }

  int64_t budget_bytes() const override { return budget_bytes_; }
  int64_t allocated_bytes() const override {
    absl::MutexLock lock(&mutex_);
    return allocated_;
  }
  int64_t peak_bytes() const override {
    absl::MutexLock lock(&mutex_);
    return peak_;
  }

 private:
  // From this size on, memory is aligned to huge pages and asks for them: activations are traversed
  // from end to end.
  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;

  void Free(std::byte* data, int64_t bytes) override {
    std::free(data);
    absl::MutexLock lock(&mutex_);
    allocated_ -= bytes;
  }

  const std::string name_;
  const std::string advice_;
  const int64_t budget_bytes_;
  mutable absl::Mutex mutex_;
  int64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::worker
