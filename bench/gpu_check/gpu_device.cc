#include "bench/gpu_check/gpu_device.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/process/dynamic_library.h"
#include "core/base/status.h"
#include "core/gpu/cuda_status.h"
#include "core/gpu/gpus.h"
#include "fmt/format.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/cuda_ops.h"

namespace shoal::bench {
namespace {

std::string CudaVersion(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Describes the library that the loader finds under these names.
std::string LibraryAt(const std::vector<std::string>& names, const char* version_function) {
  const absl::StatusOr<void*> library = OpenLibrary(names, LibraryFolders("SHOAL_CUDA_LIBRARIES"));
  if (!library.ok()) {
    return "not found";
  }
  size_t (*version)() = nullptr;
  return FindFunction(*library, version_function, version)
             ? fmt::format("{} at {}", version(), PathOf(*library))
             : PathOf(*library);
}

// Notes of all devices of the process: they outlast the device that each part makes.
struct Told {
  absl::Mutex mutex;
  std::map<std::string, int64_t> refused ABSL_GUARDED_BY(mutex);  // products
  int64_t by_cudnn ABSL_GUARDED_BY(mutex) = 0;                    // backward passes of attention
  int64_t by_own_kernels ABSL_GUARDED_BY(mutex) = 0;

  static Told& The() {
    static auto* const told = new Told;
    return *told;
  }
};

void NoteRefused(std::string_view product) {
  Told& told = Told::The();
  absl::MutexLock lock(&told.mutex);
  ++told.refused[std::string(product)];
}

void NoteBackward(bool cudnn) {
  Told& told = Told::The();
  absl::MutexLock lock(&told.mutex);
  ++(cudnn ? told.by_cudnn : told.by_own_kernels);
}

absl::StatusOr<worker::ComputeDevice> MakeComputeDevice(int64_t budget_bytes,
                                                        worker::CudaOpsOptions options) {
  options.refused_product = NoteRefused;
  options.attention_backward = NoteBackward;
  worker::ComputeDevice compute_device;
  SHOAL_ASSIGN_OR_RETURN(compute_device.device,
                         worker::MakeCudaDevice({.budget_bytes = budget_bytes}));
  SHOAL_ASSIGN_OR_RETURN(compute_device.ops, worker::MakeCudaOps(*compute_device.device, options));
  return compute_device;
}

std::string Mib(int64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> DescribeGpu() {
  SHOAL_ASSIGN_OR_RETURN(const gpu::GpuDescriptions found, gpu::DescribeGpus());
  const gpu::GpuDescription& gpu = found.gpus.front();
  SHOAL_RETURN_IF_ERROR(gpu::CheckSupported(gpu));
  return std::vector<std::pair<std::string, std::string>>{
      {"GPU", gpu.name},
      {"memory", Mib(gpu.memory_bytes)},
      {"compute capability", fmt::format("{}.{}", gpu.capability / 10, gpu.capability % 10)},
      {"multiprocessors", fmt::format("{}", gpu.multiprocessors)},
      {"L2 cache", Mib(gpu.l2_bytes)},
      {"PCI link", gpu.pci_link.empty() ? "not told" : gpu.pci_link},
      {"CUDA that the driver knows", CudaVersion(found.driver_version)},
      {"CUDA runtime", CudaVersion(found.runtime_version)},
      {"cuBLASLt", LibraryAt({"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLtGetVersion")},
      {"cuDNN", LibraryAt({"libcudnn.so.9"}, "cudnnGetVersion")},
  };
}

// Blocks without a deadline of its own: the process has one.
bool GpuIsLost() { return gpu::IsLasting(cudaDeviceSynchronize()); }

std::string TakeAttentionBackward() {
  Told& told = Told::The();
  absl::MutexLock lock(&told.mutex);
  const int64_t cudnn = std::exchange(told.by_cudnn, 0);
  const int64_t own = std::exchange(told.by_own_kernels, 0);
  if (cudnn > 0 && own > 0) {
    return fmt::format("cuDNN ({} passes) and our own kernels ({})", cudnn, own);
  }
  return cudnn > 0 ? "cuDNN" : own > 0 ? "our own kernels" : "";
}

std::map<std::string, int64_t> TakeRefusedProducts() {
  Told& told = Told::The();
  absl::MutexLock lock(&told.mutex);
  return std::exchange(told.refused, {});
}

absl::StatusOr<worker::ComputeDevice> MakeGpuComputeDevice(int64_t budget_bytes) {
  return MakeComputeDevice(budget_bytes, {.deterministic = true});
}

absl::StatusOr<worker::ComputeDevice> MakeAnyOrderComputeDevice() {
  // A job tunes products after a few of its steps, which the short time here may not reach.
  return MakeComputeDevice(/*budget_bytes=*/0, {.deterministic = false, .tune_after = 1});
}

absl::StatusOr<worker::ComputeDevice> MakeOwnKernelsComputeDevice() {
  return MakeComputeDevice(/*budget_bytes=*/0, {.cublas_lt = false, .cudnn = false});
}

}  // namespace shoal::bench
