#include "cli/doctor/gpu_survey.h"

#include <utility>

#include "core/base/process/dynamic_library.h"
#include "core/base/status.h"
#include "worker/backend/open/open_device.h"

namespace shoal::cli {
namespace {

constexpr const char* kLibraryFolders = "SHOAL_CUDA_LIBRARIES";

FoundLibrary Look(const std::string& name, const std::vector<std::string>& files) {
  FoundLibrary found{.name = name};
  const absl::StatusOr<void*> library = OpenLibrary(files, LibraryFolders(kLibraryFolders));
  if (library.ok()) {
    found.path = PathOf(*library);
  } else {
    found.problem = Message(library.status());
  }
  return found;
}

FoundGpu Measure(const gpu::GpuDescription& gpu) {
  FoundGpu found{.gpu = gpu, .usable = worker::CheckUsable(gpu)};
  if (!found.usable.ok()) {
    return found;
  }
  if (const absl::StatusOr<int64_t> free = worker::FreeGpuBytes(gpu); free.ok()) {
    found.free_bytes = *free;
  }
  const auto measured = [&]() -> absl::StatusOr<worker::CopyRates> {
    SHOAL_ASSIGN_OR_RETURN(const worker::OpenedDevice opened,
                           worker::OpenDevice({.kind = plan::DeviceKind::kCuda, .gpu = gpu.index}));
    found.budget_bytes = opened.compute_device.device->budget_bytes();
    return worker::MeasureCopyRates(*opened.compute_device.device);
  }();
  if (measured.ok()) {
    found.rates = *measured;
  } else {
    found.rates_problem = Message(measured.status());
  }
  return found;
}

}  // namespace

GpuSurvey ExamineGpus() {
  GpuSurvey survey;
  const absl::StatusOr<gpu::GpuDescriptions> found = worker::FindGpus();
  survey.found = found.status();
  if (!found.ok()) {
    return survey;
  }
  survey.driver_version = found->driver_version;
  survey.runtime_version = found->runtime_version;
  for (const gpu::GpuDescription& gpu : found->gpus) {
    survey.gpus.push_back(Measure(gpu));
  }
  survey.libraries = {Look("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}),
                      Look("cuDNN", {"libcudnn.so.9"}), Look("NCCL", {"libnccl.so.2"})};
  return survey;
}

}  // namespace shoal::cli
