#include "worker/backend/cuda/cuda_device.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/gpu/caching_pool.h"
#include "core/gpu/cuda_context.h"
#include "core/gpu/shared_buffer.h"
#include "worker/backend/cuda/cuda_stream.h"

namespace shoal::worker {
namespace {

using cuda::CudaStream;
using gpu::CachingPool;
using gpu::CudaContext;

// Left to the driver, to kernels (which it loads when they first run) and to libraries: at least
// this much and this share.
constexpr int64_t kLeftBytes = 512 * kMiB;
constexpr int64_t kLeftShare = 50;

// `Base` is Memory or Device.
template <typename Base>
class CudaMemory : public Base {
 public:
  template <typename... Arguments>
  explicit CudaMemory(Arguments&&... arguments) : pool_(std::forward<Arguments>(arguments)...) {}

  std::string_view name() const override { return pool_.name(); }
  absl::StatusOr<Buffer> Allocate(int64_t bytes) override {
    absl::StatusOr<std::byte*> data = pool_.Take(bytes);
    if (absl::IsResourceExhausted(data.status()) && GiveBackKept()) {
      data = pool_.Take(bytes);
    }
    SHOAL_RETURN_IF_ERROR(data.status());
    return Buffer(this, *data, bytes);
  }
  int64_t budget_bytes() const override { return pool_.budget_bytes(); }
  int64_t allocated_bytes() const override { return pool_.allocated_bytes(); }
  int64_t peak_bytes() const override { return pool_.peak_bytes(); }

 private:
  void Free(std::byte* data, int64_t bytes) override { pool_.Give(data, bytes); }
  // Returns whether anything was freed.
  virtual bool GiveBackKept() { return false; }

  CachingPool pool_;
};

class CudaHostMemory final : public CudaMemory<Memory> {
 public:
  CudaHostMemory(CudaContext& context, int64_t budget_bytes)
      : CudaMemory(context, CachingPool::Kind::kPinnedHost, "host",
                   "raise its budget or offload less", budget_bytes) {}
};

// First base of the device: destroyed after its memory.
struct ContextOwner {
  explicit ContextOwner(std::shared_ptr<CudaContext> owned) : context(std::move(owned)) {}
  std::shared_ptr<CudaContext> context;  // shared memory may outlive the device
};

class CudaDevice final : private ContextOwner, public CudaMemory<Device> {
 public:
  CudaDevice(std::shared_ptr<CudaContext> owned, int64_t budget_bytes)
      : ContextOwner(std::move(owned)),
        CudaMemory(*context, CachingPool::Kind::kDevice,
                   fmt::format("cuda:{}", context->gpu().index),
                   "raise the budget or lower microbatch_tokens", budget_bytes) {}

  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> NewStream(StreamKind kind) override {
    return std::make_unique<CudaStream>(*context, kind);
  }
  std::unique_ptr<Memory> NewHostMemory(int64_t budget_bytes) override {
    return std::make_unique<CudaHostMemory>(*context, budget_bytes);
  }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes) override {
    SHOAL_ASSIGN_OR_RETURN(const cudaStream_t stream, context->NewStream(/*copies=*/false));
    auto memory = gpu::AllocateShared(context, stream, bytes);
    context->DestroyStream(stream);
    return memory;
  }

  const CudaContext& the_context() const { return *context; }
  void Add(const KeptMemory& kept) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    kept_.push_back(&kept);
  }
  void Remove(const KeptMemory& kept) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::erase(kept_, &kept);
  }

 private:
  // Under the lock, so that no holder is destroyed meanwhile.
  bool GiveBackKept() override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    bool any = false;
    for (const KeptMemory* kept : kept_) {
      any = kept->GiveBack() || any;
    }
    return any;
  }

  absl::Mutex mutex_;
  std::vector<const KeptMemory*> kept_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<int64_t> BudgetOf(const CudaContext& context, const CudaDeviceOptions& options) {
  size_t free = 0;
  size_t total = 0;
  SHOAL_RETURN_IF_ERROR(
      context.Check(cudaMemGetInfo(&free, &total), "asking for what memory is free"));
  const int64_t asked = options.budget_bytes;
  if (asked > 0) {
    if (asked > static_cast<int64_t>(free)) {
      return ResourceExhausted(
          "cuda:{}: a budget of {} B, but {} of {} B are free; lower it, or end what else uses "
          "the GPU",
          context.gpu().index, asked, free, total);
    }
    return asked;
  }
  const auto available =
      static_cast<int64_t>(std::min(free, total / static_cast<size_t>(options.sharing)));
  const int64_t left = std::max(kLeftBytes, available / kLeftShare);
  const int64_t budget = (available - left) / CachingPool::kGranule * CachingPool::kGranule;
  if (budget <= 0) {
    return ResourceExhausted(
        "cuda:{}: {} of {} B are free and {} processes share them, too little to start; end what "
        "else uses the GPU",
        context.gpu().index, free, total, options.sharing);
  }
  return budget;
}

const CudaDevice& Downcast(const Device& device) {
  const auto* cuda_device = dynamic_cast<const CudaDevice*>(&device);
  SHOAL_CHECK(cuda_device != nullptr);
  return *cuda_device;
}
CudaDevice& Downcast(Device& device) {
  return const_cast<CudaDevice&>(Downcast(static_cast<const Device&>(device)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options,
                                                       Clock& clock) {
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<CudaContext> context,
                         CudaContext::Create(options.gpu, clock));
  SHOAL_ASSIGN_OR_RETURN(const int64_t budget, BudgetOf(*context, options));
  return std::make_unique<CudaDevice>(std::move(context), budget);
}

cudaStream_t NativeStream(Stream& stream) {
  auto* cuda_stream = dynamic_cast<CudaStream*>(&stream);
  SHOAL_CHECK(cuda_stream != nullptr);
  return cuda_stream->handle();
}

const absl::Status& KeptFailure(const Stream& stream) {
  const auto* cuda_stream = dynamic_cast<const CudaStream*>(&stream);
  SHOAL_CHECK(cuda_stream != nullptr);
  return cuda_stream->error();
}

const gpu::GpuDescription& GpuOf(const Device& device) {
  return Downcast(device).the_context().gpu();
}

absl::Status MakeCurrent(const Device& device) {
  return Downcast(device).the_context().MakeCurrent();
}

KeptMemory::KeptMemory(Device& device, std::function<bool()> give_back)
    : device_(device), give_back_(std::move(give_back)) {
  Downcast(device_).Add(*this);
}

KeptMemory::~KeptMemory() { Downcast(device_).Remove(*this); }

}  // namespace shoal::worker
