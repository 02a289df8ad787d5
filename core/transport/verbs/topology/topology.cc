#include "core/transport/verbs/topology/topology.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/base/file.h"

namespace shoal::transport {
namespace {

constexpr int64_t kSmallFile = 4096;

// "0000:3b:00.0": a function of a PCI device. Network devices may sit a level below it, on the
// auxiliary bus.
bool IsPciFunction(std::string_view step) {
  return step.size() >= 12 && step[step.size() - 2] == '.' && step[step.size() - 5] == ':' &&
         step[step.size() - 8] == ':' && std::isxdigit(static_cast<unsigned char>(step[0])) != 0;
}

// Resolves links; "" if the path does not exist.
std::string RealPath(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? "" : resolved;
}

// Locates the PCI function that `link` leads to or into.
DeviceLocation Locate(const std::string& link, const std::string& sysfs) {
  DeviceLocation location;
  const std::string root = RealPath(sysfs);
  std::string path = RealPath(link);
  if (root.empty() || !path.starts_with(root + "/")) {
    return location;
  }
  while (path.size() > root.size() && !IsPciFunction(path.substr(path.rfind('/') + 1))) {
    path.resize(path.rfind('/'));
  }
  if (path.size() <= root.size()) {
    return location;
  }
  location.pci_path = kSysfs + path.substr(root.size());
  if (const auto text = ReadFile(path + "/numa_node", kSmallFile); text.ok()) {
    std::from_chars(text->data(), text->data() + text->size(), location.numa_node);
  }
  return location;
}

// Returns the number at the end of a folder's name, "node12"; nullopt for other names.
std::optional<int> NodeNumber(std::string_view name) {
  constexpr std::string_view kPrefix = "node";
  int number = 0;
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && stop == name.data() + name.size() ? std::optional(number)
                                                                   : std::nullopt;
}

// Whether a list like "0-3,8,10-11" contains the number.
bool ListHolds(std::string_view list, int number) {
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    int first = 0;
    const auto begin = std::from_chars(at, end, first);
    if (begin.ec != std::errc()) {
      return false;
    }
    int last = first;
    at = begin.ptr;
    if (at < end && *at == '-') {
      const auto range = std::from_chars(at + 1, end, last);
      if (range.ec != std::errc()) {
        return false;
      }
      at = range.ptr;
    }
    if (number >= first && number <= last) {
      return true;
    }
    if (at < end && *at != ',') {
      return false;
    }
    ++at;
  }
  return false;
}

}  // namespace

DeviceLocation LocateRdmaDevice(const std::string& device, const std::string& sysfs) {
  return Locate(sysfs + "/class/infiniband/" + device + "/device", sysfs);
}

DeviceLocation LocatePciDevice(const std::string& address, const std::string& sysfs) {
  std::string name = address;
  std::ranges::transform(name, name.begin(),
                         [](unsigned char letter) { return std::tolower(letter); });
  return Locate(sysfs + "/bus/pci/devices/" + name, sysfs);
}

int NumaNodeOf(std::span<const int> cores, const std::string& sysfs) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(sysfs + "/devices/system/node", error)) {
    const std::optional<int> node = NodeNumber(entry.path().filename().string());
    if (!node.has_value()) {
      continue;
    }
    const auto list = ReadFile(entry.path().string() + "/cpulist", kSmallFile);
    if (list.ok() && !cores.empty() &&
        std::ranges::all_of(cores, [&](int core) { return ListHolds(*list, core); })) {
      return *node;
    }
  }
  return -1;
}

std::vector<int> AllowedCores() {
  // Grow until the kernel's own set fits.
  for (int most = 1024; most <= 1 << 20; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(most));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    std::vector<int> cores;
    const bool fits = set != nullptr && sched_getaffinity(0, bytes, set) == 0;
    for (int core = 0; fits && core < most; ++core) {
      if (CPU_ISSET_S(static_cast<size_t>(core), bytes, set)) {
        cores.push_back(core);
      }
    }
    CPU_FREE(set);
    if (fits) {
      return cores;
    }
  }
  return {};
}

ServedLocation FindServedLocation(std::span<const std::string> gpus, const std::string& sysfs) {
  ServedLocation place;
  std::vector<int> nodes;
  for (const std::string& gpu : gpus) {
    DeviceLocation location = LocatePciDevice(gpu, sysfs);
    nodes.push_back(location.numa_node);
    if (!location.pci_path.empty()) {
      place.pci_paths.push_back(std::move(location.pci_path));
    }
  }
  const bool together =
      !nodes.empty() && std::ranges::all_of(nodes, [&](int node) { return node == nodes[0]; });
  place.numa_node = together && nodes[0] >= 0 ? nodes[0] : NumaNodeOf(AllowedCores(), sysfs);
  return place;
}

}  // namespace shoal::transport
