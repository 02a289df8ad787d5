#include "core/base/host/host_facts.h"

#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/memory/host_memory.h"
#include "core/base/threads/thread_pool.h"
#include "fmt/format.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaximumProcFile = int64_t{16} << 20;

std::vector<std::string> GpusOf(const std::string& root) {
  std::vector<std::string> gpus;
  const std::string folder = root + "/proc/driver/nvidia/gpus";
  for (const std::string& name : EntriesOf(folder)) {
    const std::string model = ValueOf(ReadProcFile(folder + "/" + name + "/information"), "Model");
    gpus.push_back(model.empty() ? name : model);
  }
  if (gpus.empty()) {  // containers may hide /proc/driver and still pass the devices in
    for (const std::string& name : EntriesOf(root + "/dev")) {
      const bool numbered =
          name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos;
      if (name.starts_with("nvidia") && numbered) {
        gpus.push_back("/dev/" + name);
      }
    }
  }
  return gpus;
}

}  // namespace

std::string ReadProcFile(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  char buffer[4096];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(text.size()) > kMaximumProcFile) {
      break;
    }
  }
  return text;
}

std::string ValueOf(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(key)) {
      continue;
    }
    const size_t colon = line.find(':');
    const size_t begin =
        colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos && line.find_first_not_of(" \t:", key.size()) >= colon) {
      return line.substr(begin);
    }
  }
  return "";
}

std::vector<std::string> EntriesOf(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

HostFacts ReadHostFacts(const std::string& root) {
  HostFacts facts;
  utsname names{};
  if (uname(&names) == 0) {
    facts.name = names.nodename;
    facts.kernel = fmt::format("{} {}", names.sysname, names.release);
  }
  facts.cpu_model = ValueOf(ReadProcFile(root + "/proc/cpuinfo"), "model name");
  facts.cores = AvailableCores();
  if (const auto memory = ReadHostMemory(root); memory.ok()) {
    facts.memory_bytes = memory->total;
  }
  facts.gpus = GpusOf(root);
  return facts;
}

}  // namespace shoal
