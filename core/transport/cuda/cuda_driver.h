// The functions of the CUDA driver that GPU memory needs, loaded at run time. Nothing links against
// the driver, so the same binary starts on a machine without one.
#pragma once

#include <cuda.h>

#include <string>

#include "absl/status/statusor.h"

namespace shoal::transport {

// Names and types are the driver's own. Optional functions are null where the driver is too old.
struct CudaDriver {
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuGetErrorName) error_name = nullptr;
  decltype(&::cuDeviceGetCount) device_count = nullptr;
  decltype(&::cuDeviceGet) device = nullptr;
  decltype(&::cuDeviceGetName) device_name = nullptr;
  decltype(&::cuDeviceGetPCIBusId) pci_address = nullptr;
  decltype(&::cuDeviceGetAttribute) attribute = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) retain_context = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) release_context = nullptr;
  decltype(&::cuCtxPushCurrent) push_context = nullptr;
  decltype(&::cuCtxPopCurrent) pop_context = nullptr;
  decltype(&::cuPointerGetAttribute) pointer_attribute = nullptr;
  decltype(&::cuPointerSetAttribute) set_pointer_attribute = nullptr;
  decltype(&::cuMemGetAddressRange) address_range = nullptr;
  decltype(&::cuCtxGetStreamPriorityRange) stream_priorities = nullptr;
  decltype(&::cuStreamCreateWithPriority) create_stream = nullptr;
  decltype(&::cuStreamDestroy) destroy_stream = nullptr;
  decltype(&::cuStreamQuery) look_at_stream = nullptr;
  decltype(&::cuMemcpyAsync) copy = nullptr;
  decltype(&::cuMemHostRegister) pin = nullptr;
  decltype(&::cuMemHostUnregister) unpin = nullptr;
  // Optional; both or neither.
  decltype(&::cuDeviceGetUuid) uuid = nullptr;
  decltype(&::cuIpcGetMemHandle) share = nullptr;
  decltype(&::cuIpcOpenMemHandle) open_share = nullptr;
  decltype(&::cuIpcCloseMemHandle) close_share = nullptr;
  decltype(&::cuMemGetHandleForAddressRange) export_range = nullptr;      // optional, 11.7
  decltype(&::cuFlushGPUDirectRDMAWrites) flush_remote_writes = nullptr;  // optional, 11.3
};

// Loads libcuda.so.1, which stays loaded. NotFound if there is no driver.
absl::StatusOr<CudaDriver> LoadCudaDriver(const std::string& library = "libcuda.so.1");

}  // namespace shoal::transport
