// GPUs for tests: the functions of the CUDA runtime that the project calls, on the CPU. Programs
// that link this library instead of the runtime run the same host code and, through kernel_cpu.h,
// the same kernels. Thread-safe: one lock; work runs in the thread that waits.
//
// As strict as CUDA, so that tests find mistakes:
// - Work on a stream runs when somebody waits for it (or queries it, or enqueues too much), and
//   between streams in any order that events allow, chosen by the seed: a missing WaitFor gives
//   wrong results under some seed.
// - GPU memory is out of the host's reach, ends at pages that none may touch, and is filled with
//   0xFF when new.
// - A copy from pinned memory reads it when it runs, one from pageable memory when it is enqueued;
//   a copy to pageable memory is done when the call returns.
// - A failed kernel or copy makes every later call fail.
// - Launches that hardware refuses (launch_limits.h) are refused, events belong to the GPU that was
//   current when they were made, and kernels that overflow an int end the process.
// - Builds with ThreadSanitizer find races between the threads of a block (races.h).
//
// Stricter than CUDA, because it is never intended: waiting for an event that was never recorded,
// and freeing pinned memory that a copy is still to use, end the process with a line that says so.
//
// Only the process that shares memory by a handle can open it, and the memory cannot be freed while
// it is open.
//
// Not fake: time, weak memory order, concurrent launches, access between GPUs, graphs,
// textures, managed memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal::gpu {

// Which enqueued work is executed. All of it is checked when it is enqueued.
enum class Runs : uint8_t {
  kAll,
  kEnds,  // of a launch its first and its last block
  kNone,  // nothing, and GPU memory has only addresses: more than the machine has
};

struct FakeGpuOptions {
  int count = 1;                            // 0: the driver finds none
  bool driver = true;                       // false: none is installed
  uint64_t seed = 1;                        // for the order of work
  int64_t memory_bytes = int64_t{4} << 30;  // of each GPU
  int multiprocessors = 4;
  int64_t shared_bytes = 227 << 10;  // the most that a block may have
  int capability = 90;               // 10 major + minor
  Runs runs = Runs::kAll;
};

// Replaces all GPUs: earlier streams, events and memory become void, counters and failures are
// reset, and each GPU works again.
void SetFakeGpus(const FakeGpuOptions& gpus);

// Makes the `number`-th call from now (1: the next) of a function of the runtime ("cudaMalloc")
// fail without effect.
void FailCall(std::string_view function, int64_t number, cudaError_t error);
// Makes the `number`-th launch, copy or fill from now, counted as they run, fail, and everything
// after it on its GPU: a sticky error.
void FailWork(int64_t number, cudaError_t error);

// Counted since SetFakeGpus.
struct FakeGpuCounters {
  int64_t allocations = 0;  // cudaMalloc
  int64_t frees = 0;
  int64_t frees_of_opened = 0;   // refused: a handle keeps the memory open
  int64_t host_allocations = 0;  // cudaHostAlloc, cudaHostRegister
  int64_t host_frees = 0;
  int64_t allocated_bytes = 0;  // current
  int64_t host_bytes = 0;
  int64_t streams = 0;  // current
  int64_t events = 0;
  int64_t launches = 0;          // enqueued
  int64_t shared_questions = 0;  // cudaFuncSetAttribute
  int64_t pageable_copies = 0;   // asynchronous ones from or to pageable memory
  int64_t fills = 0;
  int64_t copies_to_device = 0;
  int64_t copies_to_host = 0;
  int64_t copies_on_device = 0;
  int64_t copies_on_host = 0;
  int64_t bytes_to_device = 0;
  int64_t bytes_to_host = 0;
  int64_t bytes_on_device = 0;
  int64_t bytes_on_host = 0;
};
FakeGpuCounters Counters();

// The allocation in GPU memory that contains the address. The driver reports it; the runtime does
// not.
struct FakeAllocation {
  int device = 0;
  std::byte* begin = nullptr;
  int64_t bytes = 0;

  bool operator==(const FakeAllocation&) const = default;
};
std::optional<FakeAllocation> FindAllocation(const void* address);

}  // namespace shoal::gpu
