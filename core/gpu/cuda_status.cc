#include "core/gpu/cuda_status.h"

#include <string>

#include "core/base/status.h"

namespace shoal::gpu {
namespace {

// 13000 -> "13.0".
std::string VersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

absl::Status DriverStatus() {
  int driver = 0;
  int runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return NotFound(
        "no NVIDIA driver: libcuda.so.1 is not there or finds none loaded; install the driver, or "
        "do without GPUs (train.device: cpu, service.memory: host)");
  }
  (void)cudaRuntimeGetVersion(&runtime);
  return FailedPrecondition(
      "the NVIDIA driver is too old: it knows CUDA {}, this program needs {}; update the driver",
      VersionText(driver), VersionText(runtime));
}

}  // namespace

bool IsLasting(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

absl::Status ToStatus(cudaError_t error, int gpu, std::string_view what) {
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  (void)cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) {
    return DriverStatus();
  }
  if (error == cudaErrorNoDevice) {
    return NotFound(
        "no NVIDIA GPU: the driver knows of none, or CUDA_VISIBLE_DEVICES hides all; do "
        "without GPUs (train.device: cpu, service.memory: host)");
  }
  const std::string text =
      fmt::format("{}: {}: {} ({})", gpu < 0 ? "cuda" : fmt::format("cuda:{}", gpu), what,
                  cudaGetErrorName(error), cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return ResourceExhausted("{}", text);
    case cudaErrorInvalidDevice:
      return NotFound("{}", text);
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotSupported:
    case cudaErrorSystemDriverMismatch:
      return FailedPrecondition("{}", text);
    case cudaErrorDevicesUnavailable:
      return Unavailable("{}; another process keeps it to itself", text);
    default:
      break;
  }
  if (IsLasting(error)) {
    return Internal("{}; the GPU is lost to this process, whichever call failed first: restart it",
                    text);
  }
  return Internal("{}", text);
}

}  // namespace shoal::gpu
