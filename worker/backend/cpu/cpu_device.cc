#include "worker/backend/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"

namespace shoal::worker {
namespace {

// From this size on, memory is aligned to huge pages and asks for them: activations are walked end
// to end.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

class CpuEvent : public Event {
 public:
  bool Done() const override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }
};

class CpuStream : public Stream {
 public:
  void Copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) {  // an empty vector's data may be null, which memcpy does not take
      std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }
  void Zero(void* to, int64_t bytes) override {
    if (bytes > 0) {
      std::memset(to, 0, static_cast<size_t>(bytes));
    }
  }
  std::unique_ptr<Event> Record() override { return std::make_unique<CpuEvent>(); }
  void WaitFor(const Event&) override {}
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}
  ~CpuDevice() override { SHOAL_CHECK(allocated_bytes() == 0); }

  std::string_view name() const override { return "cpu"; }

  absl::StatusOr<Buffer> Allocate(int64_t bytes) override {
    SHOAL_CHECK(bytes > 0);
    const int64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kBufferAlignment;
    {
      absl::MutexLock lock(&mutex_);
      if (budget_bytes_ > 0 && bytes > budget_bytes_ - allocated_) {
        return ResourceExhausted(
            "cpu memory: {} B asked for, {} of {} B in use; raise the budget or lower "
            "microbatch_tokens",
            bytes, allocated_, budget_bytes_);
      }
      allocated_ += bytes;
      peak_ = std::max(peak_, allocated_);
    }
    void* data = std::aligned_alloc(static_cast<size_t>(alignment),
                                    static_cast<size_t>(RoundUp(bytes, alignment)));
    if (data == nullptr) {
      absl::MutexLock lock(&mutex_);
      allocated_ -= bytes;
      return ResourceExhausted("cpu memory: the machine has no {} B left; lower microbatch_tokens",
                               bytes);
    }
    if (alignment == kHugePageBytes) {
      madvise(data, static_cast<size_t>(bytes),
              MADV_HUGEPAGE);  // a hint: refusal costs speed alone
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
  std::unique_ptr<Stream> NewStream() override { return std::make_unique<CpuStream>(); }

 private:
  void Free(std::byte* data, int64_t bytes) override {
    std::free(data);
    absl::MutexLock lock(&mutex_);
    allocated_ -= bytes;
  }

  const int64_t budget_bytes_;
  mutable absl::Mutex mutex_;
  int64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(int64_t budget_bytes) {
  return std::make_unique<CpuDevice>(budget_bytes);
}

}  // namespace shoal::worker
