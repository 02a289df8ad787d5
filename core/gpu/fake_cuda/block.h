// Runs a block of threads on the CPU. Each thread runs until it must wait for others of its warp or
// block, then the next one does; so threads that never wait run one after the other without a
// switch of stacks. The last thread of a warp to arrive does what the warp does together.
//
// The order of warps, lanes and blocks differs from launch to launch, so results that depend on it
// are wrong at some time. A thread that others wait for and that has returned or waits elsewhere
// ends the process with a line that says which and where. Under ThreadSanitizer races are found in
// any order (races.h).
//
// Used by kernel_cpu.h (threads) and by the fake runtime (launches). One launch runs at a time,
// under the runtime's lock, so all state is global and plain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace shoal::gpu::fake_cuda {

struct Extent {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
};

// The running launch and block.
struct BlockState {
  Extent grid;
  Extent block;
  int threads = 0;
  char* dynamic_shared = nullptr;
};
extern BlockState running_block;
extern int running_thread;  // within the block

// Runs `thread` for every thread of every block, or only of the first and the last block; `order`
// is a random number.
void RunBlocks(Extent grid, int threads, int64_t shared_bytes, uint64_t order,
               const std::function<void()>& thread, bool ends_alone = false);

// Returns "block (x, y, z) thread t (warp w lane l)" for the running thread; empty if none runs.
std::string RunningThreadName();
// Returns by how many bytes the address exceeds the running block's dynamic shared memory; negative
// elsewhere.
int64_t BytesBehindShared(const void* address);

// A line of a kernel; as a default argument, the caller's. (Not every clang has
// std::source_location.)
struct Where {
  const char* file = "";
  int line = 0;
  static constexpr Where Current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {.file = file, .line = line};
  }
};

// What a thread does together with others. `where` is the kernel's line.
enum class Together : uint8_t { kSyncBlock, kSyncWarp, kShuffle, kLoadMatrix, kMultiplyAdd };
void WaitForBlock(Where where);
void WaitForWarp(Where where);
uint32_t ExchangeInWarp(uint32_t value, int from_lane, Where where);
void LoadMatrixInWarp(uint32_t (&to)[4], const void* row, bool transposed, Where where);
void MultiplyAddInWarp(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Where where);

// Fails on an address that a GPU accepts only at multiples of its size.
[[noreturn]] void FailAlignment(size_t bytes, Where where);
inline void CheckAligned(const void* data, size_t bytes, Where where) {
  if (reinterpret_cast<uintptr_t>(data) % bytes != 0) [[unlikely]] {
    FailAlignment(bytes, where);
  }
}

// Starts an asynchronous copy by the running thread: `bytes`, of which those from `read` on become
// zero. Until the thread waits for it, the destination holds 0xFF.
void BeginCopy(void* to, const void* from, size_t bytes, size_t read, Where where);
void CommitCopyGroup();
void WaitForCopyGroups(int newest_left);

}  // namespace shoal::gpu::fake_cuda
