#include "cli/run/machine.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/base/file.h"
#include "core/base/memory/host_memory.h"
#include "core/base/status.h"
#include "core/base/threads/thread_pool.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaximumProcFile = int64_t{16} << 20;

// /proc files have no size, so they are read as streams.
std::string WholeFile(const std::string& path) {
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

// The value of the first "key : value" or "key: value kB" line.
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

void ExamineCpu(const std::string& root, Machine& machine) {
  const std::string text = WholeFile(root + "/proc/cpuinfo");
  machine.cpu_model = ValueOf(text, "model name");
  std::istringstream words(ValueOf(text, "flags"));
  std::set<std::string> flags;
  for (std::string word; words >> word;) {
    flags.insert(word);
  }
  machine.avx2 = flags.contains("avx2");
  machine.fma = flags.contains("fma");
  machine.avx512 = flags.contains("avx512f") && flags.contains("avx512bw") &&
                   flags.contains("avx512vl") && flags.contains("avx512dq");
  machine.avx512_bf16 = flags.contains("avx512_bf16");
  machine.amx_bf16 = flags.contains("amx_bf16");
  machine.cores_online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  machine.cores_available = AvailableCores();
  std::istringstream quota(FirstLine(root + "/sys/fs/cgroup/cpu.max"));
  double limit = 0;
  double period = 0;
  if (quota >> limit >> period && period > 0) {
    machine.cgroup_cores = limit / period;
  }
}

void ExamineMemory(const std::string& root, Machine& machine) {
  machine.memory = ReadHostMemory(root);
  struct statvfs shm {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    machine.shm_bytes = static_cast<int64_t>(shm.f_blocks * shm.f_frsize);
    machine.shm_free_bytes = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
  }
  machine.memfd = UniqueFd(memfd_create("shoal-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING)).valid();
}

void ExamineDevices(const std::string& root, Machine& machine) {
  for (const std::string& name : EntriesOf(root + "/proc/driver/nvidia/gpus")) {
    const std::string model =
        ValueOf(WholeFile(root + "/proc/driver/nvidia/gpus/" + name + "/information"), "Model");
    machine.gpus.push_back(model.empty() ? name : model);
  }
  if (machine.gpus.empty()) {  // containers may hide /proc/driver and still pass the devices in
    for (const std::string& name : EntriesOf(root + "/dev")) {
      const bool numbered =
          name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos;
      if (name.starts_with("nvidia") && numbered) {
        machine.gpus.push_back("/dev/" + name);
      }
    }
  }
  machine.nvidia_driver = FirstLine(root + "/sys/module/nvidia/version");
}

}  // namespace

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
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

Machine ExamineMachine(const std::string& root) {
  Machine machine;
  utsname names{};
  if (uname(&names) == 0) {
    machine.host = names.nodename;
    machine.kernel = fmt::format("{} {}", names.sysname, names.release);
  }
  ExamineCpu(root, machine);
  ExamineMemory(root, machine);
  ExamineDevices(root, machine);
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  machine.loopback_port =
      listener.valid() &&
      bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  return machine;
}

int UsableCores(const Machine& machine) {
  int cores = std::max(1, machine.cores_available);
  if (machine.cgroup_cores > 0) {
    cores = std::min(cores, std::max(1, static_cast<int>(std::floor(machine.cgroup_cores))));
  }
  return cores;
}

}  // namespace shoal::cli
