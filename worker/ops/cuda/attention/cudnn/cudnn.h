// The functions of cuDNN's graph interface that fused attention needs, loaded at run time: nothing
// links against it, and without it our own kernels serve.
#pragma once

#include <cudnn_graph.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::worker::cuda {

// Names and types are the library's own.
struct Cudnn {
  decltype(&::cudnnGetVersion) version = nullptr;
  decltype(&::cudnnGetErrorString) error_string = nullptr;
  decltype(&::cudnnGetLastErrorString) last_error_string = nullptr;
  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnDestroy) destroy = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&::cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;
};

// Loads libcudnn.so.9, which stays loaded: from the loader's places, from the folders of the
// environment variable SHOAL_CUDA_LIBRARIES, or from ../lib next to the program. Also loads cuDNN's
// kernel compiler, libnvrtc, which cuDNN would look for only in the loader's places. NotFound if
// there is none, or one older than kOldestCudnn.
absl::StatusOr<Cudnn> LoadCudnn();
absl::StatusOr<Cudnn> LoadCudnn(const std::vector<std::string>& names,
                                const std::vector<std::string>& folders);

// The first version that masks with -infinity and takes packed sequences of different lengths,
// including statistics.
inline constexpr size_t kOldestCudnn = 91000;

}  // namespace shoal::worker::cuda
