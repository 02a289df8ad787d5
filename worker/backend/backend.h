// Where tensors live and how bytes move: device, memory, buffer, stream, event.
//
// Used by the model (activations, gradients of activations) and by whatever moves them elsewhere. A
// Device hands out memory against a budget, makes memory of the host that its copies reach at full
// speed, and makes streams; work put on one stream runs in order, work on two streams is ordered by
// events alone. The CPU device computes in the calling thread, so events of its compute streams are
// done when recorded, and its copy streams have a thread each; callers must not rely on either,
// only on events.
//
// Threads: Memory and Device may be used from several threads; a Stream and what is made from it
// from one at a time. Ownership: a Buffer gives its memory back when it goes and must not outlive
// what it is from; streams and memory of the host must not outlive their Device. Failure: a budget
// that does not suffice is ResourceExhausted and names the numbers; what fails on a stream is
// returned by its events and by Synchronize; nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shoal::worker {

// Between two looks of a wait for an event at whether to go on waiting.
inline constexpr absl::Duration kLookAgain = absl::Milliseconds(20);

// Every allocation starts at a multiple of this: a cache line, and enough for any vector load.
inline constexpr int64_t kBufferAlignment = 64;

class Memory;

// A piece of memory. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Memory* memory, std::byte* data, int64_t bytes)
      : memory_(memory), data_(data), bytes_(bytes) {}
  ~Buffer() { Reset(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  void Reset();

 private:
  Memory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A point in a stream's order of work.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks the calling thread until the work before the event is done or the time is up; whether it
  // is done. A timeout of zero looks.
  virtual bool WaitDone(absl::Duration timeout) = 0;
  // Blocks until then; the stream's first error up to the event.
  virtual absl::Status Wait() = 0;
  // When it was done. Call just where it is.
  virtual absl::Time at() const = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  // Copies between any two of host and device memory; asynchronous where the device has it. Both
  // ranges stay valid and unchanged until an event recorded after the copy is done.
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  // Every byte of `to` becomes `value`.
  virtual void Fill(void* to, std::byte value, int64_t bytes) = 0;
  void Zero(void* to, int64_t bytes) { Fill(to, std::byte{0}, bytes); }
  virtual std::unique_ptr<Event> Record() = 0;
  // Work put on this stream from now on starts after the event (of any stream of the device).
  virtual void WaitFor(const Event& event) = 0;
  // Blocks until everything on the stream is done; returns its first error.
  virtual absl::Status Synchronize() = 0;
};

// Where buffers come from: a device's memory, or the host's.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::string_view name() const = 0;

  // `bytes` > 0, aligned to kBufferAlignment, contents undefined.
  virtual absl::StatusOr<Buffer> Allocate(int64_t bytes) = 0;
  virtual int64_t budget_bytes() const = 0;  // 0: no budget
  virtual int64_t allocated_bytes() const = 0;
  virtual int64_t peak_bytes() const = 0;

 private:
  friend class Buffer;
  virtual void Free(std::byte* data, int64_t bytes) = 0;
};

enum class StreamKind : uint8_t {
  kCompute,
  kCopy,  // between device and host, beside the compute
};

class Device : public Memory {
 public:
  // Whether its compute streams run beside the calling thread and its memory is out of the host's
  // reach, as a GPU's. Where not, what is put on a compute stream is done when the call returns.
  virtual bool asynchronous() const = 0;
  virtual std::unique_ptr<Stream> NewStream(StreamKind kind = StreamKind::kCompute) = 0;
  // Memory of the host that copy streams of this device reach at full speed (pinned, where that
  // makes a difference), with a budget of its own; 0 for none.
  virtual std::unique_ptr<Memory> NewHostMemory(int64_t budget_bytes) = 0;
  // Memory of the device for other processes to open (core/transport/shared_region.h): an
  // allocation of its own, zeroed, beside the budget, which may outlive the device where it is
  // open. `bytes` > 0. Unimplemented where a device has none.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> AllocateShared(int64_t bytes);
};

inline absl::StatusOr<std::shared_ptr<std::byte>> Device::AllocateShared(int64_t /*bytes*/) {
  return absl::UnimplementedError("memory of this device is not shared with other processes");
}

inline void Buffer::Reset() {
  if (data_ != nullptr) {
    memory_->Free(data_, bytes_);
  }
  memory_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

inline Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Reset();
    memory_ = std::exchange(other.memory_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

}  // namespace shoal::worker
