#include "worker/collectives/collectives.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include "fmt/format.h"

namespace shoal::worker {
namespace {

// Identifies the running kernel: the same in all containers of a machine, whatever they call it.
std::string MachineName() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (std::getline(file, id) && !id.empty()) {
    return id;
  }
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "";
}

}  // namespace

std::string NameGpu(std::string_view pci_address) {
  return fmt::format("{} of machine {}", pci_address, MachineName());
}

}  // namespace shoal::worker
