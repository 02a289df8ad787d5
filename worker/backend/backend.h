// Where tensors live and how bytes move: device, buffer, stream, event.
//
// Used by the model (activations, gradients of activations) and by whatever moves them elsewhere. A
// Device hands out memory against a budget and makes streams; work put on one stream runs in order,
// work on two streams is ordered by events alone. The CPU device runs everything at once in the
// calling thread, so its events are done when recorded; callers must not rely on that, only on
// events.
//
// Threads: a Device may be used from several threads; a Stream and what is made from it from one at
// a time. Ownership: a Buffer gives its memory back when it goes and must not outlive its Device.
// Failure: a budget that does not suffice is ResourceExhausted and names the numbers; nothing here
// throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::worker {

// Every allocation starts at a multiple of this: a cache line, and enough for any vector load.
inline constexpr int64_t kBufferAlignment = 64;

class Device;

// A piece of a device's memory. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, std::byte* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  ~Buffer() { Reset(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  void Reset();

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A point in a stream's order of work.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Done() const = 0;
  // Blocks the calling thread until the work before the event is done; the stream's first error
  // otherwise.
  virtual absl::Status Wait() = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Copies between any two of host and device memory; asynchronous where the device has it. Both
  // ranges stay valid and unchanged until an event recorded after the copy is done.
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void Zero(void* to, int64_t bytes) = 0;
  virtual std::unique_ptr<Event> Record() = 0;
  // Work put on this stream from now on starts after the event (of any stream of the device).
  virtual void WaitFor(const Event& event) = 0;
  // Blocks until everything on the stream is done; returns its first error.
  virtual absl::Status Synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;

  // `bytes` > 0, aligned to kBufferAlignment, contents undefined.
  virtual absl::StatusOr<Buffer> Allocate(int64_t bytes) = 0;
  virtual int64_t budget_bytes() const = 0;  // 0: no budget
  virtual int64_t allocated_bytes() const = 0;
  virtual int64_t peak_bytes() const = 0;

  virtual std::unique_ptr<Stream> NewStream() = 0;

 private:
  friend class Buffer;
  virtual void Free(std::byte* data, int64_t bytes) = 0;
};

inline void Buffer::Reset() {
  if (data_ != nullptr) {
    device_->Free(data_, bytes_);
  }
  device_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

inline Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Reset();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

}  // namespace shoal::worker
