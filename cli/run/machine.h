// What this machine offers: read once from /proc, /sys, /dev and a few system calls. Used by `shoal
// doctor` and by the checks `shoal train` makes before it starts anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/memory/host_memory.h"

namespace shoal::cli {

struct Machine {
  std::string host;
  std::string kernel;
  std::string cpu_model;
  int cores_online = 0;
  int cores_available = 0;  // this process's affinity
  double cgroup_cores = 0;  // 0: no quota
  bool avx2 = false;
  bool fma = false;
  bool avx512 = false;  // F, BW, VL and DQ together
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
  absl::StatusOr<HostMemory> memory = HostMemory();
  int64_t shm_bytes = 0;  // size of /dev/shm; 0: none
  int64_t shm_free_bytes = 0;
  bool memfd = false;          // memfd_create with sealing
  bool loopback_port = false;  // a TCP port on 127.0.0.1 can be bound
  std::vector<std::string> gpus;
  std::string nvidia_driver;  // version; empty: none

  bool cpu_has_bf16() const { return avx512_bf16 || amx_bf16; }
};

// `root` is put before /proc, /sys and /dev, for tests.
Machine ExamineMachine(const std::string& root = "");

// The first line of a file; empty where it cannot be read.
std::string FirstLine(const std::string& path);

// How many cores to plan with: affinity and cgroup quota taken together, at least 1.
int UsableCores(const Machine& machine);

// Cores shared out evenly over processes of one kind, at least 1 each.
int ThreadsPerProcess(int cores, int64_t processes, int64_t wanted);

}  // namespace shoal::cli
