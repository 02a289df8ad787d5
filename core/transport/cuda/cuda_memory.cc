#include "core/transport/cuda/cuda_memory.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

// Longer than the copies of one call take on a GPU that others keep busy.
constexpr absl::Duration kCopyTimeout = absl::Minutes(1);
// A thread that waits for copies polls for this long, which most of them stay below, and then
// sleeps between looks.
constexpr absl::Duration kNoSleep = absl::Microseconds(200);
constexpr absl::Duration kPause = absl::Microseconds(50);

CUdeviceptr Pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

class CudaMemory final : public GpuMemory {
 public:
  CudaMemory(const CudaDriver& driver, int home, Clock& clock)
      : driver_(driver), home_(home), clock_(clock) {}
  ~CudaMemory() override;
  absl::Status Open();

  int gpus() const override { return static_cast<int>(gpus_.size()); }
  const GpuDevice& gpu(int index) const override { return At(index).description; }
  absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) override;
  absl::Status Prepare(const void* address) override;
  absl::StatusOr<UniqueFd> ExportDmaBuf(const void* address, int64_t bytes,
                                        DmaBufMapping mapping) override;
  absl::StatusOr<GpuShare> Share(std::span<const std::byte> memory) override;
  absl::StatusOr<OpenedShare> Open(const GpuShare& share) override;
  void Close(const OpenedShare& opened) override;
  absl::Status FlushRemoteWrites(int gpu) override;
  absl::Status Copy(std::span<const GpuCopy> copies) override;
  bool PinsReadOnly() const override { return pins_read_only_; }
  absl::Status Pin(std::span<const std::byte> memory, bool writable) override;
  void Unpin(std::span<const std::byte> memory) override;

 private:
  struct Gpu {
    CUdevice device = 0;
    GpuDevice description;
    CUcontext context = nullptr;  // guarded by mutex_ until it is set
    // guarded by mutex_; as many as copies have run concurrently
    std::vector<CUstream> idle_streams;
  };

  // Makes a GPU's context current in this thread during its lifetime.
  class Current {
   public:
    Current(CudaMemory& memory, int gpu) : driver_(memory.driver_) {
      absl::StatusOr<CUcontext> context = memory.Context(gpu);
      status_ = context.ok() ? memory.Check(driver_.push_context(*context), "cuCtxPushCurrent")
                             : context.status();
    }
    ~Current() {
      if (status_.ok()) {
        CUcontext popped = nullptr;
        driver_.pop_context(&popped);
      }
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const absl::Status& status() const { return status_; }

   private:
    const CudaDriver& driver_;
    absl::Status status_;
  };

  const Gpu& At(int index) const {
    SHOAL_CHECK(index >= 0 && index < gpus());
    return gpus_[static_cast<size_t>(index)];
  }
  absl::Status Check(CUresult result, std::string_view what) const;
  int Attribute(CUdevice device, CUdevice_attribute attribute) const;
  absl::StatusOr<Gpu> Describe(int index) const;
  // Returns the GPU that holds the address, or nullopt.
  absl::StatusOr<std::optional<int>> WhereIs(const void* address);
  absl::StatusOr<CUcontext> Context(int index) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns a stream of that GPU, whose context is current, for one copy.
  absl::StatusOr<CUstream> TakeStream(int index) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveStream(int index, CUstream stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until all copies on the stream are done.
  absl::Status AwaitCopies(CUstream stream) const;

  const CudaDriver driver_;
  const int home_;
  Clock& clock_;
  std::vector<Gpu> gpus_;
  bool pins_read_only_ = false;  // of the home GPU
  absl::Mutex mutex_;
};

CudaMemory::~CudaMemory() {
  for (const Gpu& gpu : gpus_) {
    if (gpu.context == nullptr) {
      continue;
    }
    if (driver_.push_context(gpu.context) == CUDA_SUCCESS) {
      for (CUstream stream : gpu.idle_streams) {
        driver_.destroy_stream(stream);
      }
      CUcontext popped = nullptr;
      driver_.pop_context(&popped);
    }
    driver_.release_context(gpu.device);
  }
}

absl::Status CudaMemory::Check(CUresult result, std::string_view what) const {
  if (result == CUDA_SUCCESS) {
    return absl::OkStatus();
  }
  const char* name = nullptr;
  driver_.error_name(result, &name);
  const std::string_view text = name == nullptr ? "unknown error" : name;
  switch (result) {
    case CUDA_ERROR_NOT_SUPPORTED:
      return Unimplemented("{}: {}", what, text);
    case CUDA_ERROR_OUT_OF_MEMORY:
      return ResourceExhausted("{}: {}", what, text);
    case CUDA_ERROR_INVALID_VALUE:
      return InvalidArgument("{}: {}", what, text);
    default:
      return Internal("{}: {} ({})", what, text, static_cast<int>(result));
  }
}

int CudaMemory::Attribute(CUdevice device, CUdevice_attribute attribute) const {
  int value = 0;  // an older driver does not know all attributes
  return driver_.attribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

absl::StatusOr<CudaMemory::Gpu> CudaMemory::Describe(int index) const {
  Gpu gpu;
  SHOAL_RETURN_IF_ERROR(Check(driver_.device(&gpu.device, index), "cuDeviceGet"));
  char text[128] = "";
  if (driver_.device_name(text, sizeof(text) - 1, gpu.device) == CUDA_SUCCESS) {
    gpu.description.name = text;
  }
  if (driver_.pci_address(text, sizeof(text) - 1, gpu.device) == CUDA_SUCCESS) {
    gpu.description.pci_address = text;
  }
  if (CUuuid uuid = {};
      driver_.uuid != nullptr && driver_.uuid(&uuid, gpu.device) == CUDA_SUCCESS) {
    std::ranges::copy(uuid.bytes, gpu.description.uuid.begin());
  }
  gpu.description.dma_buf = driver_.export_range != nullptr &&
                            Attribute(gpu.device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0;
  const int ordering = Attribute(gpu.device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  const int flush = Attribute(gpu.device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) {
    gpu.description.remote_writes = RemoteWrites::kVisible;
  } else if ((flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0 &&
             driver_.flush_remote_writes != nullptr) {
    gpu.description.remote_writes = RemoteWrites::kFlushed;
  }
  return gpu;
}

absl::Status CudaMemory::Open() {
  int count = 0;
  const CUresult initialised = driver_.init(0);
  if (initialised == CUDA_ERROR_NO_DEVICE) {
    return NotFound("the CUDA driver finds no GPU");
  }
  SHOAL_RETURN_IF_ERROR(Check(initialised, "cuInit"));
  SHOAL_RETURN_IF_ERROR(Check(driver_.device_count(&count), "cuDeviceGetCount"));
  for (int i = 0; i < count; ++i) {
    SHOAL_ASSIGN_OR_RETURN(Gpu gpu, Describe(i));
    gpus_.push_back(std::move(gpu));
  }
  if (home_ >= gpus()) {
    return NotFound("the CUDA driver finds {} GPUs, so none of number {}", gpus(), home_);
  }
  pins_read_only_ = Attribute(gpus_[static_cast<size_t>(home_)].device,
                              CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
  return Context(home_).status();
}

absl::StatusOr<CUcontext> CudaMemory::Context(int index) {
  At(index);
  Gpu& gpu = gpus_[static_cast<size_t>(index)];
  absl::MutexLock lock(&mutex_);
  if (gpu.context == nullptr) {
    CUcontext context = nullptr;
    SHOAL_RETURN_IF_ERROR(
        Check(driver_.retain_context(&context, gpu.device), "cuDevicePrimaryCtxRetain"));
    gpu.context = context;
  }
  return gpu.context;
}

absl::StatusOr<std::optional<int>> CudaMemory::WhereIs(const void* address) {
  const Current home(*this, home_);  // threads of transports have no context of their own
  SHOAL_RETURN_IF_ERROR(home.status());
  unsigned int type = 0;
  const CUresult known =
      driver_.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, Pointer(address));
  if (known == CUDA_ERROR_INVALID_VALUE || known == CUDA_ERROR_INVALID_CONTEXT ||
      (known == CUDA_SUCCESS && type != CU_MEMORYTYPE_DEVICE)) {
    return std::nullopt;  // not from the driver, or pinned host memory
  }
  SHOAL_RETURN_IF_ERROR(Check(known, "cuPointerGetAttribute"));
  unsigned int managed = 0;
  if (driver_.pointer_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, Pointer(address)) ==
          CUDA_SUCCESS &&
      managed != 0) {
    return InvalidArgument("{} is managed memory, which moves: other devices cannot reach it",
                           address);
  }
  int ordinal = -1;
  SHOAL_RETURN_IF_ERROR(Check(
      driver_.pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, Pointer(address)),
      "cuPointerGetAttribute"));
  if (ordinal < 0 || ordinal >= gpus()) {
    return Internal("{} lies on GPU {} of {}", address, ordinal, gpus());
  }
  return ordinal;
}

absl::StatusOr<std::optional<GpuAllocation>> CudaMemory::Find(const void* address) {
  SHOAL_ASSIGN_OR_RETURN(const std::optional<int> ordinal, WhereIs(address));
  if (!ordinal.has_value()) {
    return std::nullopt;
  }
  const Current current(*this, *ordinal);
  SHOAL_RETURN_IF_ERROR(current.status());
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  SHOAL_RETURN_IF_ERROR(
      Check(driver_.address_range(&begin, &bytes, Pointer(address)), "cuMemGetAddressRange"));
  return GpuAllocation{.gpu = *ordinal,
                       .begin = static_cast<uintptr_t>(begin),
                       .bytes = static_cast<int64_t>(bytes)};
}

absl::Status CudaMemory::Prepare(const void* address) {
  const Current home(*this, home_);
  SHOAL_RETURN_IF_ERROR(home.status());
  unsigned int on = 1;
  return Check(
      driver_.set_pointer_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, Pointer(address)),
      "cuPointerSetAttribute");
}

absl::StatusOr<UniqueFd> CudaMemory::ExportDmaBuf(const void* address, int64_t bytes,
                                                  DmaBufMapping mapping) {
  if (driver_.export_range == nullptr) {
    return Unimplemented("the CUDA driver is older than 11.7 and cannot export memory");
  }
  SHOAL_ASSIGN_OR_RETURN(const auto allocation, Find(address));
  if (!allocation.has_value()) {
    return InvalidArgument("{} is not GPU memory", address);
  }
  const Current current(*this, allocation->gpu);
  SHOAL_RETURN_IF_ERROR(current.status());
  const unsigned long long flags =
      mapping == DmaBufMapping::kPcie ? CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE : 0;
  int fd = -1;
  SHOAL_RETURN_IF_ERROR(
      Check(driver_.export_range(&fd, Pointer(address), static_cast<size_t>(bytes),
                                 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, flags),
            "cuMemGetHandleForAddressRange"));
  return UniqueFd(fd);
}

absl::StatusOr<GpuShare> CudaMemory::Share(std::span<const std::byte> memory) {
  SHOAL_ASSIGN_OR_RETURN(const auto allocation, Find(memory.data()));
  if (!allocation.has_value()) {
    return InvalidArgument("{} is not GPU memory", fmt::ptr(memory.data()));
  }
  const int64_t offset =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.data()) - allocation->begin);
  if (static_cast<int64_t>(memory.size()) > allocation->bytes - offset) {
    return InvalidArgument("{} bytes at {} reach beyond their allocation", memory.size(),
                           fmt::ptr(memory.data()));
  }
  const Gpu& gpu = At(allocation->gpu);
  if (driver_.share == nullptr || gpu.description.uuid == std::array<char, 16>{}) {
    return Unimplemented("the CUDA driver shares no memory between processes");
  }
  const Current current(*this, allocation->gpu);
  SHOAL_RETURN_IF_ERROR(current.status());
  GpuShare share{
      .gpu = gpu.description.uuid, .offset = offset, .bytes = static_cast<int64_t>(memory.size())};
  CUipcMemHandle handle = {};
  SHOAL_RETURN_IF_ERROR(Check(driver_.share(&handle, static_cast<CUdeviceptr>(allocation->begin)),
                              "cuIpcGetMemHandle"));
  static_assert(sizeof(handle.reserved) == sizeof(share.allocation));
  std::ranges::copy(handle.reserved, share.allocation.begin());
  return share;
}

absl::StatusOr<OpenedShare> CudaMemory::Open(const GpuShare& share) {
  const bool seen =
      std::ranges::any_of(gpus_, [&](const Gpu& gpu) { return gpu.description.uuid == share.gpu; });
  if (!seen || share.gpu == std::array<char, 16>{} || driver_.open_share == nullptr) {
    return FailedPrecondition("memory of {}, which this process does not see", GpuName(share.gpu));
  }
  // In the context in which this process's copies run, even for another GPU's memory.
  const Current current(*this, home_);
  SHOAL_RETURN_IF_ERROR(current.status());
  CUipcMemHandle handle = {};
  std::ranges::copy(share.allocation, handle.reserved);
  CUdeviceptr opened = 0;
  const CUresult result = driver_.open_share(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != CUDA_SUCCESS) {
    return NotFound("memory of {} cannot be opened: {}", GpuName(share.gpu),
                    Message(Check(result, "cuIpcOpenMemHandle")));
  }
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  const absl::Status known =
      Check(driver_.address_range(&begin, &bytes, opened), "cuMemGetAddressRange");
  const auto size = static_cast<int64_t>(bytes);
  if (!known.ok() || share.offset < 0 || share.bytes <= 0 || share.offset > size ||
      share.bytes > size - share.offset) {
    driver_.close_share(opened);
    SHOAL_RETURN_IF_ERROR(known);
    return InvalidArgument("{} bytes at {} of an allocation of {}", share.bytes, share.offset,
                           size);
  }
  auto* const allocation = reinterpret_cast<std::byte*>(opened);
  return OpenedShare{.memory = {allocation + share.offset, static_cast<size_t>(share.bytes)},
                     .allocation = allocation};
}

void CudaMemory::Close(const OpenedShare& opened) {
  const Current current(*this, home_);
  if (current.status().ok()) {
    driver_.close_share(Pointer(opened.allocation));
  }
}

absl::Status CudaMemory::FlushRemoteWrites(int gpu) {
  switch (At(gpu).description.remote_writes) {
    case RemoteWrites::kVisible:
      return absl::OkStatus();
    case RemoteWrites::kCannotBeFlushed:
      return Unimplemented("{} cannot flush what other devices wrote", At(gpu).description.name);
    case RemoteWrites::kFlushed:
      break;
  }
  const Current current(*this, gpu);
  SHOAL_RETURN_IF_ERROR(current.status());
  return Check(driver_.flush_remote_writes(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                           CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
               "cuFlushGPUDirectRDMAWrites");
}

absl::StatusOr<CUstream> CudaMemory::TakeStream(int index) {
  {
    absl::MutexLock lock(&mutex_);
    std::vector<CUstream>& idle = gpus_[static_cast<size_t>(index)].idle_streams;
    if (!idle.empty()) {
      CUstream stream = idle.back();
      idle.pop_back();
      return stream;
    }
  }
  // Somebody waits for each copy, and copies within a GPU compete with what it computes.
  int least = 0;
  int greatest = 0;
  SHOAL_RETURN_IF_ERROR(
      Check(driver_.stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  CUstream stream = nullptr;
  SHOAL_RETURN_IF_ERROR(
      Check(driver_.create_stream(&stream, CU_STREAM_NON_BLOCKING, greatest), "cuStreamCreate"));
  return stream;
}

void CudaMemory::GiveStream(int index, CUstream stream) {
  absl::MutexLock lock(&mutex_);
  gpus_[static_cast<size_t>(index)].idle_streams.push_back(stream);
}

absl::Status CudaMemory::AwaitCopies(CUstream stream) const {
  const absl::Time begin = clock_.Now();
  CUresult found = driver_.look_at_stream(stream);
  for (; found == CUDA_ERROR_NOT_READY; found = driver_.look_at_stream(stream)) {
    const absl::Duration waited = clock_.Now() - begin;
    if (waited >= kCopyTimeout) {
      return DeadlineExceeded("copies of a GPU: not done within {}",
                              absl::FormatDuration(kCopyTimeout));
    }
    if (waited < kNoSleep) {
      std::this_thread::yield();
    } else {
      clock_.SleepFor(kPause);
    }
  }
  return Check(found, "cuStreamQuery");
}

absl::Status CudaMemory::Copy(std::span<const GpuCopy> copies) {
  if (copies.empty()) {
    return absl::OkStatus();
  }
  const GpuCopy& first = copies.front();
  SHOAL_ASSIGN_OR_RETURN(const std::optional<int> target, WhereIs(first.to));
  SHOAL_ASSIGN_OR_RETURN(const std::optional<int> source, WhereIs(first.from));
  if (!target.has_value() && !source.has_value()) {
    return InvalidArgument("neither {} nor {} is GPU memory", first.to, first.from);
  }
  // Between two GPUs, copies run on this process's own: a context on the other one takes memory
  // there.
  const int gpu = source == home_ ? home_ : target.value_or(source.value_or(home_));
  const Current current(*this, gpu);
  SHOAL_RETURN_IF_ERROR(current.status());
  SHOAL_ASSIGN_OR_RETURN(CUstream stream, TakeStream(gpu));
  absl::Status status;
  for (const GpuCopy& copy : copies) {
    status = Check(
        driver_.copy(Pointer(copy.to), Pointer(copy.from), static_cast<size_t>(copy.bytes), stream),
        "cuMemcpyAsync");
    if (!status.ok()) {
      break;
    }
  }
  // Also wait for copies before one that failed: nobody may touch their memory while they run.
  const absl::Status done = AwaitCopies(stream);
  if (done.ok()) {
    GiveStream(gpu, stream);
  } else {
    driver_.destroy_stream(stream);  // work on it may be in flight
  }
  return status.ok() ? done : status;
}

absl::Status CudaMemory::Pin(std::span<const std::byte> memory, bool writable) {
  if (!writable && !pins_read_only_) {
    return Unimplemented("this GPU cannot pin memory that the process may only read");
  }
  const Current current(*this, home_);
  SHOAL_RETURN_IF_ERROR(current.status());
  const unsigned int flags =
      CU_MEMHOSTREGISTER_PORTABLE | (writable ? 0U : CU_MEMHOSTREGISTER_READ_ONLY);
  return Check(driver_.pin(const_cast<std::byte*>(memory.data()), memory.size(), flags),
               "cuMemHostRegister");
}

void CudaMemory::Unpin(std::span<const std::byte> memory) {
  const Current current(*this, home_);
  if (current.status().ok()) {
    driver_.unpin(const_cast<std::byte*>(memory.data()));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuMemory>> OpenCudaMemory(int home) {
  SHOAL_ASSIGN_OR_RETURN(const CudaDriver driver, LoadCudaDriver());
  return OpenCudaMemory(driver, home);
}

absl::StatusOr<std::unique_ptr<GpuMemory>> OpenCudaMemory(const CudaDriver& driver, int home,
                                                          Clock& clock) {
  auto memory = std::make_unique<CudaMemory>(driver, home, clock);
  SHOAL_RETURN_IF_ERROR(memory->Open());
  return memory;
}

}  // namespace shoal::transport
