#include "cli/run/machine.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "core/base/file.h"
#include "core/base/host/host_facts.h"
#include "core/base/memory/host_memory.h"
#include "core/base/status.h"

namespace shoal::cli {
namespace {

void ExamineCpu(const std::string& root, Machine& machine) {
  std::istringstream words(ValueOf(ReadProcFile(root + "/proc/cpuinfo"), "flags"));
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

}  // namespace

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Machine ExamineMachine(const std::string& root) {
  Machine machine;
  HostFacts facts = ReadHostFacts(root);
  machine.host = std::move(facts.name);
  machine.kernel = std::move(facts.kernel);
  machine.cpu_model = std::move(facts.cpu_model);
  machine.cores_available = facts.cores;
  machine.gpus = std::move(facts.gpus);
  machine.nvidia_driver = FirstLine(root + "/sys/module/nvidia/version");
  ExamineCpu(root, machine);
  ExamineMemory(root, machine);
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

int ThreadsPerProcess(int cores, int64_t processes, int64_t wanted) {
  if (wanted > 0) {
    return static_cast<int>(wanted);
  }
  return static_cast<int>(std::max<int64_t>(1, cores / std::max<int64_t>(1, processes)));
}

}  // namespace shoal::cli
