#include "worker/ops/cuda/attention/cudnn/cudnn.h"

#include "core/base/process/dynamic_library.h"
#include "core/base/status.h"

namespace shoal::worker::cuda {

absl::StatusOr<Cudnn> LoadCudnn() {
  return LoadCudnn({"libcudnn.so.9"}, LibraryFolders("SHOAL_CUDA_LIBRARIES"));
}

absl::StatusOr<Cudnn> LoadCudnn(const std::vector<std::string>& names,
                                const std::vector<std::string>& folders) {
  // If it is missing, cuDNN itself says which kernels it cannot compile.
  (void)OpenLibrary({"libnvrtc.so.13", "libnvrtc.so.12"}, folders);
  const absl::StatusOr<void*> library = OpenLibrary(names, folders);
  if (!library.ok()) {
    return NotFound("no cuDNN: {}: install it, or name its folder in SHOAL_CUDA_LIBRARIES",
                    Message(library.status()));
  }
  Cudnn cudnn;
  const bool whole =
      FindFunction(*library, "cudnnGetVersion", cudnn.version) &&
      FindFunction(*library, "cudnnGetErrorString", cudnn.error_string) &&
      FindFunction(*library, "cudnnGetLastErrorString", cudnn.last_error_string) &&
      FindFunction(*library, "cudnnCreate", cudnn.create) &&
      FindFunction(*library, "cudnnDestroy", cudnn.destroy) &&
      FindFunction(*library, "cudnnSetStream", cudnn.set_stream) &&
      FindFunction(*library, "cudnnBackendCreateDescriptor", cudnn.create_descriptor) &&
      FindFunction(*library, "cudnnBackendDestroyDescriptor", cudnn.destroy_descriptor) &&
      FindFunction(*library, "cudnnBackendSetAttribute", cudnn.set_attribute) &&
      FindFunction(*library, "cudnnBackendGetAttribute", cudnn.get_attribute) &&
      FindFunction(*library, "cudnnBackendFinalize", cudnn.finalize) &&
      FindFunction(*library, "cudnnBackendExecute", cudnn.execute);
  if (!whole || cudnn.version() < kOldestCudnn) {
    return NotFound(
        "no cuDNN: what was found is older than {}.{}: install a newer one, or name "
        "its folder in SHOAL_CUDA_LIBRARIES",
        kOldestCudnn / 10000, kOldestCudnn / 100 % 100);
  }
  return cudnn;
}

}  // namespace shoal::worker::cuda
