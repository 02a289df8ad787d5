// The memory that the fake runtime has allocated, and who can access it now. Only the fake
// includes it and calls it under its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace shoal::gpu::fake_cuda {

enum class Place : uint8_t { kPageable, kPinned, kDevice };

class AddressSpace {
 public:
  struct Range {
    Place place = Place::kPageable;
    int device = 0;
    int64_t bytes = 0;
    void* mapping = nullptr;  // null: other code's memory, registered
    int64_t mapped_bytes = 0;
    unsigned flags = 0;
    uint64_t number = 0;  // unique among allocations
    int opened = 0;       // handles that are open
  };

  static constexpr int64_t kAlignment = 512;

  ~AddressSpace();

  // The memory ends where a page begins that nobody may touch. It is filled with 0xFF or, if not
  // `backed`, its addresses must not be touched either. Null if the machine has no more.
  std::byte* Allocate(Place place, int device, int64_t bytes, unsigned flags, bool backed = true);
  void Register(void* data, int64_t bytes, unsigned flags);
  // Returns the range that begins there; null if none does.
  const Range* FindBegin(const void* data) const;
  // False if there is no such range, or a handle keeps it open.
  bool Free(void* data, Place place);
  bool Unregister(void* data);
  // Returns the start of the GPU memory allocated under this number, or null.
  std::byte* OpenHandle(uint64_t number);
  // False if it is not open.
  bool CloseHandle(void* data);

  // Returns the range that holds [data, data + bytes); null for pageable memory. Sets `torn` if
  // only a part of it lies in a range. If `begin_of` is given, the range must begin there.
  const Range* Find(const void* data, int64_t bytes, bool& torn,
                    std::byte** begin_of = nullptr) const;

  // Makes only this GPU's memory accessible from now on. kAll, kNone: that of all GPUs, of none.
  static constexpr int kAll = -1;
  static constexpr int kNone = -2;
  void Open(int device);

  // Says where an address lies that nobody may touch: "12 B behind the 400 B at 0x.. of a GPU".
  std::string Describe(const void* address) const;

  int64_t allocated_bytes(int device) const;
  int64_t host_bytes() const;

 private:
  void Protect(const Range& range) const;

  std::map<std::byte*, Range> ranges_;
  uint64_t next_number_ = 1;
  int open_ = kNone;
};

}  // namespace shoal::gpu::fake_cuda
