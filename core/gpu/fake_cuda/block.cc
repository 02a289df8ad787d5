#include "core/gpu/fake_cuda/block.h"

#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/gpu/fake_cuda/async_copies.h"
#include "core/gpu/fake_cuda/fiber.h"
#include "core/gpu/fake_cuda/races.h"
#include "core/gpu/fake_cuda/warp_work.h"
#include "core/gpu/launch_limits.h"
#include "fmt/format.h"

namespace shoal::gpu::fake_cuda {

BlockState running_block;
int running_thread = 0;

namespace {

constexpr int kMaxThreads = kMaxBlockThreads;
constexpr int kMaxWarps = kMaxThreads / kWarp;
constexpr uint32_t kAll = 0xFFFFFFFFu;
constexpr int kNone = -1;
// The content of memory that nobody has written: NaN in fp32 and bf16.
constexpr int kPoison = 0xFF;

struct Warp {
  uint32_t runnable = kAll;  // begun or not; neither waiting nor done
  uint32_t done = 0;
  uint32_t arrived = 0;  // at `kind`
  Together kind = Together::kSyncWarp;
  Where where;
  Lanes lanes;
  ThreadBarrier thread_barrier;
};

// The mapping ends where the block's memory does: overruns crash.
class SharedMemory {
 public:
  SharedMemory() {
    void* mapping = mmap(nullptr, kBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SHOAL_CHECK(mapping != MAP_FAILED);
    end_ = static_cast<char*>(mapping) + kBytes;
    SHOAL_CHECK(mprotect(end_, kGuardBytes, PROT_NONE) == 0);
  }
  int64_t BytesBehind(const void* address) const {
    const int64_t offset = static_cast<const char*>(address) - end_;
    return offset < kGuardBytes ? offset : -1;
  }
  char* Of(int64_t bytes) {
    SHOAL_CHECK(bytes <= kBytes);
    return end_ - RoundUp(bytes, kAlignment);
  }

 private:
  static constexpr int64_t kBytes = 256 << 10;
  static constexpr int64_t kGuardBytes = 64 << 10;
  static constexpr int64_t kAlignment = 128;
  char* end_ = nullptr;
};

void FiberMain();

// Everything that outlives a block.
struct Processor {
  FiberPool pool{&FiberMain};
  SharedMemory shared;
  std::array<Warp, kMaxWarps> warps;
  std::array<Fiber*, kMaxThreads> fibers{};
  std::array<AsyncCopies, kMaxThreads> copies;
  int warp_count = 0;
  bool ascending = true;
  int at_barrier = 0;
  Where barrier;
  ThreadBarrier thread_barrier;
  ThreadBarrier begins;  // of a block, for the launch
  ThreadBarrier ends;    // of a block's threads
  const void* begun = nullptr;
  std::array<Fiber*, kMaxThreads> own{};  // if races are checked: of each thread of a block
  Fiber* main = nullptr;
  const std::function<void()>* thread = nullptr;
};

Processor& TheProcessor() {
  static auto* processor = new Processor;
  return *processor;
}

const char* NameOf(Together kind) {
  switch (kind) {
    case Together::kSyncBlock:
      return "SyncBlock";
    case Together::kSyncWarp:
      return "SyncWarp";
    case Together::kShuffle:
      return "Shuffle";
    case Together::kLoadMatrix:
      return "LoadMatrix";
    case Together::kMultiplyAdd:
      return "MultiplyAdd";
  }
  return "";
}

std::string ThreadName(int thread) {
  const Extent& block = running_block.block;
  return fmt::format("block ({}, {}, {}) thread {} (warp {} lane {})", block.x, block.y, block.z,
                     thread, thread / kWarp, thread % kWarp);
}

std::string DescribePlace(Together kind, Where where) {
  return fmt::format("{} at {}:{}", NameOf(kind), where.file, where.line);
}

[[noreturn]] void Fail(Where where, const std::string& what) {
  internal::CheckFailed(where.file, where.line, what.c_str());
}

// Call when nobody can run and some are not done: says who is waited for, and where they are
// instead.
[[noreturn]] void FailStuck(const Processor& processor) {
  const auto whereabouts = [&processor](int thread) -> std::string {
    const Warp& warp = processor.warps[static_cast<size_t>(thread / kWarp)];
    const uint32_t bit = 1u << (thread % kWarp);
    if ((warp.done & bit) != 0) {
      return "has returned";
    }
    return "stands at " + ((warp.arrived & bit) != 0
                               ? DescribePlace(warp.kind, warp.where)
                               : DescribePlace(Together::kSyncBlock, processor.barrier));
  };
  for (int w = 0; w < processor.warp_count; ++w) {
    const Warp& warp = processor.warps[static_cast<size_t>(w)];
    if (warp.arrived != 0) {
      const int missing = w * kWarp + std::countr_zero(~warp.arrived);
      Fail(warp.where, fmt::format("{} {} while its warp waits for it at {}", ThreadName(missing),
                                   whereabouts(missing), DescribePlace(warp.kind, warp.where)));
    }
  }
  for (int w = 0; w < processor.warp_count; ++w) {
    if (const uint32_t done = processor.warps[static_cast<size_t>(w)].done; done != 0) {
      const int missing = w * kWarp + std::countr_zero(done);
      Fail(processor.barrier, fmt::format("{} {} while its block waits for it at {}",
                                          ThreadName(missing), whereabouts(missing),
                                          DescribePlace(Together::kSyncBlock, processor.barrier)));
    }
  }
  SHOAL_CHECK(false);
  __builtin_unreachable();
}

// Returns the next thread to run after `running_thread`, of its warp if possible. kNone: all are
// done.
int Pick(const Processor& processor) {
  const int lane = running_thread % kWarp;
  int w = running_thread / kWarp;
  const Warp& warp = processor.warps[static_cast<size_t>(w)];
  if (warp.runnable != 0) {
    const int next = processor.ascending
                         ? lane + 1 + std::countr_zero(std::rotr(warp.runnable, lane + 1))
                         : lane - 1 - std::countl_zero(std::rotl(warp.runnable, kWarp - lane));
    return w * kWarp + (next & (kWarp - 1));
  }
  bool all_done = warp.done == kAll;
  for (int i = 1; i < processor.warp_count; ++i) {
    w += processor.ascending ? 1 : -1;
    w = w == processor.warp_count ? 0 : w < 0 ? processor.warp_count - 1 : w;
    const Warp& other = processor.warps[static_cast<size_t>(w)];
    if (other.runnable != 0) {
      return w * kWarp + (processor.ascending ? std::countr_zero(other.runnable)
                                              : kWarp - 1 - std::countl_zero(other.runnable));
    }
    all_done = all_done && other.done == kAll;
  }
  if (!all_done) {
    FailStuck(processor);
  }
  return kNone;
}

Fiber& FiberFor(Processor& processor, int thread) {
  Fiber*& fiber = processor.fibers[static_cast<size_t>(thread)];
  if (fiber == nullptr) {
    fiber = &processor.pool.Take();
  }
  return *fiber;
}

// The fiber of that thread of each block, made before any runs: what makes a fiber is ordered
// before everything it does.
Fiber& OwnFiber(Processor& processor, int thread) {
  Fiber*& own = processor.own[static_cast<size_t>(thread)];
  if (own == nullptr) {
    own = &processor.pool.Take();
  }
  return *own;
}

// A fiber runs threads until the next runnable one has begun on another; if races are checked, the
// same thread of each block.
void FiberMain() {
  Fiber::Arrived();
  Processor& processor = TheProcessor();
  while (true) {
    int thread = running_thread;
    Fiber* self = processor.fibers[static_cast<size_t>(thread)];
    while (true) {
      ThreadBarrier::Leave(processor.begun);
      (*processor.thread)();
      processor.ends.Arrive();
      Warp& warp = processor.warps[static_cast<size_t>(thread / kWarp)];
      warp.runnable &= ~(1u << (thread % kWarp));
      warp.done |= 1u << (thread % kWarp);
      thread = Pick(processor);
      if (kFindsRaces || thread == kNone ||
          processor.fibers[static_cast<size_t>(thread)] != nullptr) {
        break;
      }
      processor.fibers[static_cast<size_t>(thread)] = self;
      running_thread = thread;
    }
    if (!kFindsRaces) {
      processor.pool.Give(*self);
    }
    if (thread == kNone) {
      self->SwitchTo(*processor.main);
    } else {
      running_thread = thread;
      self->SwitchTo(*processor.fibers[static_cast<size_t>(thread)]);
    }
  }
}

// Returns when the running thread is runnable again.
void LetOthersRun(Processor& processor) {
  const int self = running_thread;
  const int next = Pick(processor);
  SHOAL_CHECK(next != kNone);
  running_thread = next;
  processor.fibers[static_cast<size_t>(self)]->SwitchTo(FiberFor(processor, next));
}

Operands& RunningOperands() {
  return TheProcessor()
      .warps[static_cast<size_t>(running_thread / kWarp)]
      .lanes[static_cast<size_t>(running_thread % kWarp)];
}

// The running thread's part in `kind`; the last of the warp runs `finish`.
template <typename Finish>
void TogetherInWarp(Together kind, Where where, Finish finish) {
  Processor& processor = TheProcessor();
  Warp& warp = processor.warps[static_cast<size_t>(running_thread / kWarp)];
  const uint32_t bit = 1u << (running_thread % kWarp);
  if (warp.arrived == 0) {
    warp.kind = kind;
    warp.where = where;
  } else if (warp.kind != kind || warp.where.line != where.line) {
    Fail(where,
         fmt::format("{} comes to {} while its warp waits for it at {}", ThreadName(running_thread),
                     DescribePlace(kind, where), DescribePlace(warp.kind, warp.where)));
  }
  warp.arrived |= bit;
  warp.runnable &= ~bit;
  const void* const turn = kind == Together::kSyncWarp ? warp.thread_barrier.Arrive() : nullptr;
  if (warp.arrived != kAll) {
    LetOthersRun(processor);
  } else {
    finish(warp.lanes);
    warp.arrived = 0;
    warp.runnable = kAll;
    warp.thread_barrier.Turn();
  }
  if (turn != nullptr) {
    ThreadBarrier::Leave(turn);
  }
}

}  // namespace

void RunBlocks(Extent grid, int threads, int64_t shared_bytes, uint64_t order,
               const std::function<void()>& thread, bool ends_alone) {
  SHOAL_CHECK(threads > 0 && threads <= kMaxThreads && threads % kWarp == 0);
  Processor& processor = TheProcessor();
  Fiber main;
  processor.main = &main;
  processor.thread = &thread;
  processor.warp_count = threads / kWarp;
  running_block.grid = grid;
  running_block.threads = threads;
  running_block.dynamic_shared = processor.shared.Of(shared_bytes);
  const int64_t blocks = grid.x * grid.y * grid.z;
  const int64_t step = ends_alone && blocks > 1 ? blocks - 1 : 1;
  for (int64_t i = 0; i < blocks; i += step) {
    const int64_t block = (order & 1) != 0 ? blocks - 1 - i : i;
    running_block.block = {
        .x = block % grid.x, .y = block / grid.x % grid.y, .z = block / grid.x / grid.y};
    processor.ascending = ((order >> 1 ^ static_cast<uint64_t>(i)) & 1) == 0;
    processor.at_barrier = 0;
    for (int w = 0; w < processor.warp_count; ++w) {
      Warp& warp = processor.warps[static_cast<size_t>(w)];
      warp.runnable = kAll;
      warp.done = 0;
      warp.arrived = 0;
    }
    for (int t = 0; t < threads; ++t) {
      processor.copies[static_cast<size_t>(t)].Clear();
      processor.fibers[static_cast<size_t>(t)] = kFindsRaces ? &OwnFiber(processor, t) : nullptr;
    }
    Writes(running_block.dynamic_shared, static_cast<size_t>(shared_bytes));
    std::memset(running_block.dynamic_shared, kPoison, static_cast<size_t>(shared_bytes));
    const auto first_warp =
        static_cast<int>((order >> 2) % static_cast<uint64_t>(processor.warp_count));
    running_thread = first_warp * kWarp + (processor.ascending ? 0 : kWarp - 1);
    processor.begun = processor.begins.Arrive();
    main.SwitchTo(FiberFor(processor, running_thread));
    ThreadBarrier::Leave(processor.ends.Arrive());
  }
  processor.main = nullptr;
  processor.thread = nullptr;
}

std::string RunningThreadName() {
  return TheProcessor().thread == nullptr ? "" : ThreadName(running_thread);
}

int64_t BytesBehindShared(const void* address) {
  return TheProcessor().shared.BytesBehind(address);
}

void WaitForBlock(Where where) {
  Processor& processor = TheProcessor();
  if (processor.at_barrier == 0) {
    processor.barrier = where;
  } else if (processor.barrier.line != where.line) {
    Fail(where, fmt::format("{} comes to {} while its block waits for it at {}",
                            ThreadName(running_thread), DescribePlace(Together::kSyncBlock, where),
                            DescribePlace(Together::kSyncBlock, processor.barrier)));
  }
  ++processor.at_barrier;
  processor.warps[static_cast<size_t>(running_thread / kWarp)].runnable &=
      ~(1u << (running_thread % kWarp));
  const void* const turn = processor.thread_barrier.Arrive();
  if (processor.at_barrier != running_block.threads) {
    LetOthersRun(processor);
  } else {
    processor.at_barrier = 0;
    for (int w = 0; w < processor.warp_count; ++w) {
      processor.warps[static_cast<size_t>(w)].runnable = kAll;
    }
    processor.thread_barrier.Turn();
  }
  ThreadBarrier::Leave(turn);
}

void WaitForWarp(Where where) {
  TogetherInWarp(Together::kSyncWarp, where, [](Lanes&) {});
}

uint32_t ExchangeInWarp(uint32_t value, int from_lane, Where where) {
  uint32_t result = 0;
  Operands& operands = RunningOperands();
  operands.value = value;
  operands.from_lane = from_lane;
  operands.to = &result;
  TogetherInWarp(Together::kShuffle, where, FinishShuffle);
  return result;
}

void LoadMatrixInWarp(uint32_t (&to)[4], const void* row, bool transposed, Where where) {
  CheckAligned(row, 16, where);
  Operands& operands = RunningOperands();
  operands.row = row;
  operands.to = to;
  Reads(row, 16);
  TogetherInWarp(Together::kLoadMatrix, where,
                 [transposed](Lanes& lanes) { FinishLoadMatrix(lanes, transposed); });
}

void MultiplyAddInWarp(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Where where) {
  Operands& operands = RunningOperands();
  operands.d = d;
  operands.a = a;
  operands.b = b;
  TogetherInWarp(Together::kMultiplyAdd, where, FinishMultiplyAdd);
}

void FailAlignment(size_t bytes, Where where) {
  Fail(where, fmt::format("{}: {} bytes at once from where they are not aligned",
                          ThreadName(running_thread), bytes));
}

void BeginCopy(void* to, const void* from, size_t bytes, size_t read, Where where) {
  CheckAligned(to, bytes, where);
  CheckAligned(read > 0 ? from : nullptr, bytes, where);
  TheProcessor().copies[static_cast<size_t>(running_thread)].Begin(to, from, bytes, read);
}

void CommitCopyGroup() { TheProcessor().copies[static_cast<size_t>(running_thread)].Commit(); }

void WaitForCopyGroups(int newest_left) {
  TheProcessor().copies[static_cast<size_t>(running_thread)].Wait(newest_left);
}

}  // namespace shoal::gpu::fake_cuda
