#include "core/transport/gpu_memory.h"

#include "fmt/format.h"

namespace shoal::transport {

std::string GpuName(const std::array<char, 16>& uuid) {
  if (uuid == std::array<char, 16>{}) {
    return "";
  }
  std::string name = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    name += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    name += fmt::format("{:02x}", static_cast<unsigned char>(uuid[i]));
  }
  return name;
}

}  // namespace shoal::transport
