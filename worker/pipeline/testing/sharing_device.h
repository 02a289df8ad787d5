// The CPU's device, for tests, as one whose memory other processes may open.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_device.h"

namespace shoal::worker {

class SharingDevice final : public Device {
 public:
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes) override {
    constexpr int64_t kPage = 4096;
    void* const data = std::aligned_alloc(kPage, static_cast<size_t>(RoundUp(bytes, kPage)));
    if (++shared_->now > shared_->most) {
      shared_->most = shared_->now.load();
    }
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(data),
                                      [shared = shared_](std::byte* memory) {
                                        --shared->now;
                                        std::free(memory);
                                      });
  }
  // The most allocations that existed at once.
  int most_shared() const { return shared_->most; }

  bool asynchronous() const override { return cpu_->asynchronous(); }
  std::unique_ptr<Stream> NewStream(StreamKind kind) override { return cpu_->NewStream(kind); }
  std::unique_ptr<Memory> NewHostMemory(int64_t budget_bytes) override {
    return cpu_->NewHostMemory(budget_bytes);
  }
  std::string_view name() const override { return cpu_->name(); }
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override { return cpu_->Allocate(bytes); }
  int64_t budget_bytes() const override { return cpu_->budget_bytes(); }
  int64_t allocated_bytes() const override { return cpu_->allocated_bytes(); }
  int64_t peak_bytes() const override { return cpu_->peak_bytes(); }

 private:
  struct Shared {
    std::atomic<int> now = 0;
    std::atomic<int> most = 0;
  };
  // Buffers are the CPU's own.
  void Free(std::byte* /*data*/, int64_t /*bytes*/) override { SHOAL_CHECK(false); }

  const std::unique_ptr<Device> cpu_ = MakeCpuDevice();
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace shoal::worker
