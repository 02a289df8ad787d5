// What a machine is, from /proc and system calls: for records of runs and for `shoal doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal {

struct HostFacts {
  std::string name;
  std::string kernel;     // "Linux 6.1.0-18-amd64"
  std::string cpu_model;  // empty: the kernel does not say
  int cores = 0;          // that this process may use
  int64_t memory_bytes = 0;
  std::vector<std::string> gpus;  // models; device files where drivers hide them
};

// `root` is put before /proc, /sys and /dev, for tests.
HostFacts ReadHostFacts(const std::string& root = "");

// Files of /proc have no size, so they are read as streams. Empty where it cannot be read.
std::string ReadProcFile(const std::string& path);
// The value of the first "key : value" or "key: value kB" line; empty without one.
std::string ValueOf(const std::string& text, const std::string& key);
// The names in a folder, sorted; none where it cannot be read.
std::vector<std::string> EntriesOf(const std::string& folder);

}  // namespace shoal
