// Feeds arbitrary bytes as shard or manifest: each is refused or parsed, never trusted.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "server/checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)shoal::server::ParseShard(std::as_bytes(std::span(data, size)), static_cast<int64_t>(size),
                                  "input");
  uint64_t job_hash = 0;
  (void)shoal::server::ParseManifest(std::string(reinterpret_cast<const char*>(data), size),
                                     "input", &job_hash);
  return 0;
}
