// GPUs of tests: the functions of the CUDA runtime that the project calls, on the CPU. Programs
// that link this library instead of the runtime run the same host code and, through kernel_cpu.h,
// the same kernels.
//
// What it is strict about, so that tests find it. Work on a stream runs when somebody waits for it
// (or asks, or puts too much on it), and between streams in any order that events allow, chosen by
// the seed: a WaitFor that is missing gives wrong results under some seed. Memory of a GPU is out
// of the host's reach, ends at pages that none may touch, and is full of 0xFF when new. A copy from
// pinned memory reads it when it runs, one from pageable memory when it is put on the stream, and a
// copy to pageable memory is done when the call returns, as CUDA has it. A failed kernel or copy
// makes every later call fail. Launches that hardware refuses (launch_limits.h) are refused, events
// belong to the GPU that was current when they were made, and kernels that overflow an int end the
// process. Builds with ThreadSanitizer find races between the threads of a block (races.h).
//
// Stricter than CUDA, because it is never meant: to wait for an event that was never recorded, and
// to give back pinned memory that a copy is still to use, end the process with a line that says so.
//
// Memory that is shared by a handle can be opened by the process that shares it alone, and cannot
// be freed while it is open.
//
// What it does not do: time, weak memory order, several launches at once, access between GPUs,
// graphs, textures, managed memory.
//
// Threads: any. One lock; work runs in the thread that waits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal::gpu {

// What is done of work that was put on streams. All of it is checked when it is put there.
enum class Runs : uint8_t {
  kAll,
  kEnds,  // of a launch its first and its last block
  kNone,  // and memory of GPUs is addresses alone: more than the machine has
};

struct EmulatedGpus {
  int count = 1;                            // 0: the driver knows of none
  bool driver = true;                       // false: none is installed
  uint64_t seed = 1;                        // of the order of work
  int64_t memory_bytes = int64_t{4} << 30;  // of each GPU
  int multiprocessors = 4;
  int64_t shared_bytes = 227 << 10;  // a block's at most
  int capability = 90;               // 10 major + minor
  Runs runs = Runs::kAll;
};

// Takes all GPUs away and gives these: streams, events and memory there were are void, counters and
// failures are forgotten, and each GPU is whole again.
void SetEmulatedGpus(const EmulatedGpus& gpus);

// The call of this number from now (1: the next) of a function of the runtime ("cudaMalloc") fails
// and does nothing.
void FailCall(std::string_view function, int64_t number, cudaError_t error);
// The launch, copy or fill of this number from now, counted as they run, fails instead, and
// everything after it on its GPU: a sticky error.
void FailWork(int64_t number, cudaError_t error);

// Since SetEmulatedGpus.
struct EmulatedCounters {
  int64_t allocations = 0;  // cudaMalloc
  int64_t frees = 0;
  int64_t frees_of_opened = 0;   // refused: somebody has the memory open by a handle
  int64_t host_allocations = 0;  // cudaHostAlloc, cudaHostRegister
  int64_t host_frees = 0;
  int64_t allocated_bytes = 0;  // now
  int64_t host_bytes = 0;
  int64_t streams = 0;  // now
  int64_t events = 0;
  int64_t launches = 0;          // put on streams
  int64_t shared_questions = 0;  // cudaFuncSetAttribute
  int64_t pageable_copies = 0;   // put on streams without waiting, from or to pageable memory
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
EmulatedCounters Counters();

// Of memory of a GPU: the allocation that the address lies in. The driver tells that; the runtime
// does not.
struct EmulatedAllocation {
  int device = 0;
  std::byte* begin = nullptr;
  int64_t bytes = 0;

  bool operator==(const EmulatedAllocation&) const = default;
};
std::optional<EmulatedAllocation> FindAllocation(const void* address);

}  // namespace shoal::gpu
