#include "server/checkpoint/record_cache.h"

#include <cstring>

#include "core/base/check.h"

namespace shoal::server {

absl::Status RecordCache::Copy(const void* key, int64_t bytes, const Loader& load, int64_t offset,
                               std::span<std::byte> out) {
  SHOAL_CHECK(offset >= 0 && offset <= bytes - std::ssize(out));
  const std::shared_ptr<Record> record = Find(key);
  absl::call_once(record->once, [&] {
    if (record->capacity < bytes) {
      record->data.reset(new std::byte[static_cast<size_t>(bytes)]);  // not zeroed
      record->capacity = bytes;
    }
    record->status = load({record->data.get(), static_cast<size_t>(bytes)});
  });
  if (record->status.ok()) {
    std::memcpy(out.data(), record->data.get() + offset, out.size());
  }
  return record->status;
}

std::shared_ptr<RecordCache::Record> RecordCache::Find(const void* key) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Record>& last = last_[std::this_thread::get_id()];
  if (last != nullptr && last->key == key) {
    return last;
  }
  auto record = by_key_[key].lock();
  const bool made = record == nullptr;
  if (made) {
    record = std::make_shared<Record>();
    record->key = key;
    by_key_[key] = record;
  }
  // Threads let go of a record here alone, so nobody copies out of one that only `last` holds.
  if (last != nullptr && last.use_count() == 1) {
    by_key_.erase(last->key);
    if (made) {  // else another thread may be loading it
      record->data = std::move(last->data);
      record->capacity = last->capacity;
    }
  }
  last = record;
  return record;
}

}  // namespace shoal::server
