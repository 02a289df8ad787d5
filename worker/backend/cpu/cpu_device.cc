#include "worker/backend/cpu/cpu_device.h"

#include <atomic>
#include <cstring>

#include "core/base/status.h"
#include "worker/backend/cpu/copy_stream.h"
#include "worker/backend/cpu/cpu_event.h"
#include "worker/backend/cpu/cpu_memory.h"

namespace shoal::worker {
namespace {

// Runs in the calling thread, which therefore waits where the stream does.
class CpuComputeStream final : public Stream {
 public:
  explicit CpuComputeStream(Clock& clock) : clock_(clock) {}

  void Copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) {  // an empty vector's data may be null, which memcpy does not accept
      std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }
  void Fill(void* to, std::byte value, int64_t bytes) override {
    if (bytes > 0) {
      std::memset(to, static_cast<int>(value), static_cast<size_t>(bytes));
    }
  }
  std::unique_ptr<Event> Record() override {
    auto state = std::make_shared<CpuEventState>();
    state->Set(error_, clock_.Now());
    return std::make_unique<CpuEvent>(std::move(state));
  }
  void WaitFor(const Event& event) override {
    if (absl::Status status = static_cast<const CpuEvent&>(event).state()->Wait(); error_.ok()) {
      error_ = std::move(status);
    }
  }
  absl::Status Synchronize() override { return error_; }

 private:
  Clock& clock_;
  absl::Status error_;
};

class CpuHostMemory final : public CpuMemory<Memory> {
 public:
  explicit CpuHostMemory(int64_t budget_bytes)
      : CpuMemory("host", "raise its budget or offload less", budget_bytes) {}
};

class CpuDevice final : public CpuMemory<Device> {
 public:
  CpuDevice(int64_t budget_bytes, const CpuCopyOptions& copies, Clock& clock)
      : CpuMemory("cpu", "raise the budget or lower microbatch_tokens", budget_bytes),
        copies_(copies),
        clock_(clock) {}

  bool asynchronous() const override { return false; }
  std::unique_ptr<Stream> NewStream(StreamKind kind) override {
    if (kind == StreamKind::kCompute) {
      return std::make_unique<CpuComputeStream>(clock_);
    }
    return std::make_unique<CpuCopyStream>(copies_, copy_streams_.fetch_add(1), clock_);
  }
  std::unique_ptr<Memory> NewHostMemory(int64_t budget_bytes) override {
    return std::make_unique<CpuHostMemory>(budget_bytes);
  }

 private:
  const CpuCopyOptions copies_;
  Clock& clock_;
  std::atomic<uint64_t> copy_streams_{0};
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(int64_t budget_bytes, const CpuCopyOptions& copies,
                                      Clock& clock) {
  return std::make_unique<CpuDevice>(budget_bytes, copies, clock);
}

}  // namespace shoal::worker
