// What memory the emulated runtime has given out, and who can reach it now. Included by the
// emulation alone, which calls it under its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace shoal::gpu::emulation {

enum class Place : uint8_t { kPageable, kPinned, kDevice };

class AddressSpace {
 public:
  struct Range {
    Place place = Place::kPageable;
    int device = 0;
    int64_t bytes = 0;
    void* mapping = nullptr;  // null: memory of somebody else's, registered
    int64_t mapped_bytes = 0;
    unsigned flags = 0;
    uint64_t number = 0;  // no other allocation has it
    int opened = 0;       // by handles, and not closed
  };

  static constexpr int64_t kAlignment = 512;

  ~AddressSpace();

  // Ends where a page begins that nobody may touch; full of 0xFF, or where not `backed`, addresses
  // that nobody may touch either. Null where the machine has no more.
  std::byte* Allocate(Place place, int device, int64_t bytes, unsigned flags, bool backed = true);
  void Register(void* data, int64_t bytes, unsigned flags);
  // The range that begins there; null where none does.
  const Range* FindBegin(const void* data) const;
  // False where there is no such range, or it is open by a handle.
  bool Free(void* data, Place place);
  bool Unregister(void* data);
  // Of GPU memory that was given out under this number: where it begins, or null.
  std::byte* OpenHandle(uint64_t number);
  // False where it is not open.
  bool CloseHandle(void* data);

  // The range that holds [data, data + bytes); null for pageable memory. `torn` where just a part
  // of it lies in a range. Where `begin_of` is
  // given, the range begins there.
  const Range* Find(const void* data, int64_t bytes, bool& torn,
                    std::byte** begin_of = nullptr) const;

  // The memory of this GPU can be reached from now on and no other's. kAll, kNone: as they say.
  static constexpr int kAll = -1;
  static constexpr int kNone = -2;
  void Open(int device);

  // Where an address lies that nobody may touch: "12 B behind the 400 B at 0x.. of a GPU".
  std::string Describe(const void* address) const;

  int64_t allocated_bytes(int device) const;
  int64_t host_bytes() const;

 private:
  void Protect(const Range& range) const;

  std::map<std::byte*, Range> ranges_;
  uint64_t next_number_ = 1;
  int open_ = kNone;
};

}  // namespace shoal::gpu::emulation
