#include "bench/gpu_check/testing/parts.h"

#include <filesystem>

#include "bench/gpu_check/base/cpu_flat_kernels.h"
#include "core/base/random.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

namespace shoal::bench {

std::string NewFolder() {
  const std::string folder =
      fmt::format("{}/gpu-{}", ::testing::TempDir(), SecureToken().substr(0, 12));
  std::filesystem::create_directories(folder);
  return folder;
}

PartOptions OnTheCpu() {
  PartOptions options;
  options.make_device = [](int64_t budget) -> absl::StatusOr<worker::ComputeDevice> {
    return worker::MakeCpuComputeDevice(2, budget);
  };
  options.flat = &CpuFlatKernels();
  options.machine = {{"device", "the processor"}};
  options.sizes = SmallSizes();
  return options;
}

PartReport RunOne(std::string_view name, const PartOptions& options) {
  return RunParts(*ChosenParts(name), options).front();
}

}  // namespace shoal::bench
