#include "core/transport/cuda/cuda_driver.h"

#include <dlfcn.h>

#include "core/base/status.h"

// The header renames functions to their newest versions with macros; the library knows them by
// those names.
#define SHOAL_TEXT_OF(name) #name
#define SHOAL_SYMBOL(name) SHOAL_TEXT_OF(name)

namespace shoal::transport {
namespace {

template <typename Function>
bool Find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, symbol));
  return function != nullptr;
}

}  // namespace

absl::StatusOr<CudaDriver> LoadCudaDriver(const std::string& name) {
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return NotFound("no CUDA driver: {}", why == nullptr ? "unknown" : why);
  }
  CudaDriver driver;
  const bool whole =
      Find(library, SHOAL_SYMBOL(cuInit), driver.init) &&
      Find(library, SHOAL_SYMBOL(cuGetErrorName), driver.error_name) &&
      Find(library, SHOAL_SYMBOL(cuDeviceGetCount), driver.device_count) &&
      Find(library, SHOAL_SYMBOL(cuDeviceGet), driver.device) &&
      Find(library, SHOAL_SYMBOL(cuDeviceGetName), driver.device_name) &&
      Find(library, SHOAL_SYMBOL(cuDeviceGetPCIBusId), driver.pci_address) &&
      Find(library, SHOAL_SYMBOL(cuDeviceGetAttribute), driver.attribute) &&
      Find(library, SHOAL_SYMBOL(cuDevicePrimaryCtxRetain), driver.retain_context) &&
      Find(library, SHOAL_SYMBOL(cuDevicePrimaryCtxRelease), driver.release_context) &&
      Find(library, SHOAL_SYMBOL(cuCtxPushCurrent), driver.push_context) &&
      Find(library, SHOAL_SYMBOL(cuCtxPopCurrent), driver.pop_context) &&
      Find(library, SHOAL_SYMBOL(cuPointerGetAttribute), driver.pointer_attribute) &&
      Find(library, SHOAL_SYMBOL(cuPointerSetAttribute), driver.set_pointer_attribute) &&
      Find(library, SHOAL_SYMBOL(cuMemGetAddressRange), driver.address_range) &&
      Find(library, SHOAL_SYMBOL(cuCtxGetStreamPriorityRange), driver.stream_priorities) &&
      Find(library, SHOAL_SYMBOL(cuStreamCreateWithPriority), driver.create_stream) &&
      Find(library, SHOAL_SYMBOL(cuStreamDestroy), driver.destroy_stream) &&
      Find(library, SHOAL_SYMBOL(cuStreamQuery), driver.look_at_stream) &&
      Find(library, SHOAL_SYMBOL(cuMemcpyAsync), driver.copy) &&
      Find(library, SHOAL_SYMBOL(cuMemHostRegister), driver.pin) &&
      Find(library, SHOAL_SYMBOL(cuMemHostUnregister), driver.unpin);
  if (!whole) {
    return FailedPrecondition("{} lacks functions of a CUDA driver: update the driver", name);
  }
  Find(library, SHOAL_SYMBOL(cuDeviceGetUuid), driver.uuid);
  Find(library, SHOAL_SYMBOL(cuIpcGetMemHandle), driver.share);
  Find(library, SHOAL_SYMBOL(cuIpcOpenMemHandle), driver.open_share);
  Find(library, SHOAL_SYMBOL(cuIpcCloseMemHandle), driver.close_share);
  Find(library, SHOAL_SYMBOL(cuMemGetHandleForAddressRange), driver.export_range);
  Find(library, SHOAL_SYMBOL(cuFlushGPUDirectRDMAWrites), driver.flush_remote_writes);
  return driver;
}

}  // namespace shoal::transport
