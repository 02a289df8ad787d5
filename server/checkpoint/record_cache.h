// The records of a checkpoint that are being read, whole and verified, so that reading one range
// after another of a record reads and hashes it once.
//
// Keeps for each thread the record that it read last, in memory that its next record takes over.
// Threads that read the same record share it. Thread-safe: who asks for a record that is being
// loaded waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shoal::server {

class RecordCache {
 public:
  // Fills a buffer as long as the record.
  using Loader = std::function<absl::Status(std::span<std::byte> record)>;

  // Copies bytes [offset, offset + out.size()) of the record that `key` names, and that has `bytes`
  // of them. Returns what `load` returned if that failed.
  absl::Status Copy(const void* key, int64_t bytes, const Loader& load, int64_t offset,
                    std::span<std::byte> out) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Record {
    const void* key = nullptr;
    absl::once_flag once;
    absl::Status status;
    std::unique_ptr<std::byte[]> data;
    int64_t capacity = 0;  // of data
  };

  std::shared_ptr<Record> Find(const void* key) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  absl::flat_hash_map<std::thread::id, std::shared_ptr<Record>> last_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const void*, std::weak_ptr<Record>> by_key_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::server
