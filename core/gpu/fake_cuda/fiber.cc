#include "core/gpu/fake_cuda/fiber.h"

#include <sys/mman.h>

#include "core/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define SHOAL_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SHOAL_FIBER_ASAN 1
#endif
#endif

#ifdef SHOAL_FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SHOAL_FINDS_RACES
#include <sanitizer/tsan_interface.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifdef __x86_64__
extern "C" void shoal_switch_stack(void** save, void* to);
// What a function call must preserve lies on the stack that is left; the address to continue at is
// the call's.
asm(R"(
  .text
  .p2align 4
  .globl shoal_switch_stack
  .hidden shoal_switch_stack
  .type shoal_switch_stack, @function
shoal_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size shoal_switch_stack, .-shoal_switch_stack
)");
#endif

namespace shoal::gpu::fake_cuda {
namespace {

#if defined(SHOAL_FIBER_ASAN) || defined(SHOAL_FINDS_RACES)
constexpr size_t kStackBytes = size_t{256} << 10;
#else
constexpr size_t kStackBytes = size_t{64} << 10;
#endif
#ifdef SHOAL_FIBER_ASAN
// The fiber left for the running one: unknown bounds are learned on arrival.
const void** left_bottom = nullptr;
size_t* left_bytes = nullptr;
#endif
constexpr size_t kGuardBytes = 4096;
constexpr size_t kFibersOfAMapping = 64;

}  // namespace

Fiber::Fiber() {
#ifdef SHOAL_FINDS_RACES
  sanitizer_ = __tsan_get_current_fiber();
#endif
#ifndef __x86_64__
  context_ = std::make_unique<std::byte[]>(sizeof(ucontext_t));
#endif
}

Fiber::Fiber(std::byte* stack, size_t bytes, void (*entry)()) : bottom_(stack), bytes_(bytes) {
#ifdef SHOAL_FINDS_RACES
  sanitizer_ = __tsan_create_fiber(0);
  owns_sanitizer_ = true;
#endif
#ifdef __x86_64__
  // As shoal_switch_stack leaves a stack: six registers, then where to continue; above that an
  // aligned place for the return address that a function expects.
  auto* top = reinterpret_cast<void**>(stack + bytes);
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(entry);
  for (int i = 3; i <= 8; ++i) {
    top[-i] = nullptr;
  }
  stack_pointer_ = top - 8;
#else
  context_ = std::make_unique<std::byte[]>(sizeof(ucontext_t));
  auto* context = reinterpret_cast<ucontext_t*>(context_.get());
  SHOAL_CHECK(getcontext(context) == 0);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
#endif
}

Fiber::~Fiber() {
#ifdef SHOAL_FINDS_RACES
  if (owns_sanitizer_) {
    __tsan_destroy_fiber(sanitizer_);
  }
#endif
}

void Fiber::SwitchTo(Fiber& other) {
#ifdef SHOAL_FIBER_ASAN
  left_bottom = &bottom_;
  left_bytes = &bytes_;
  __sanitizer_start_switch_fiber(&sanitizer_, other.bottom_, other.bytes_);
#endif
#ifdef SHOAL_FINDS_RACES
  // A switch itself orders nothing.
  __tsan_switch_to_fiber(other.sanitizer_, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __x86_64__
  shoal_switch_stack(&stack_pointer_, other.stack_pointer_);
#else
  SHOAL_CHECK(swapcontext(reinterpret_cast<ucontext_t*>(context_.get()),
                          reinterpret_cast<ucontext_t*>(other.context_.get())) == 0);
#endif
#ifdef SHOAL_FIBER_ASAN
  __sanitizer_finish_switch_fiber(sanitizer_, left_bottom, left_bytes);
#endif
}

void Fiber::Arrived() {
#ifdef SHOAL_FIBER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, left_bottom, left_bytes);
#endif
}

FiberPool::~FiberPool() {
  fibers_.clear();
  for (std::byte* mapping : mappings_) {
    munmap(mapping, kFibersOfAMapping * (kStackBytes + kGuardBytes));
  }
}

Fiber& FiberPool::Take() {
  if (free_.empty()) {
    Grow();
  }
  Fiber* fiber = free_.back();
  free_.pop_back();
  return *fiber;
}

void FiberPool::Grow() {
  constexpr size_t kEach = kStackBytes + kGuardBytes;
  void* mapping = mmap(nullptr, kFibersOfAMapping * kEach, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SHOAL_CHECK(mapping != MAP_FAILED);
  mappings_.push_back(static_cast<std::byte*>(mapping));
  for (size_t i = kFibersOfAMapping; i > 0; --i) {
    std::byte* stack = mappings_.back() + (i - 1) * kEach;
    SHOAL_CHECK(mprotect(stack, kGuardBytes, PROT_NONE) == 0);
    // Places tops at different offsets of a page: otherwise all of them would share a few lines of
    // the cache.
    const size_t shift = (i % 32) * 128;
    fibers_.push_back(std::make_unique<Fiber>(stack + kGuardBytes, kStackBytes - shift, entry_));
    free_.push_back(fibers_.back().get());
  }
}

}  // namespace shoal::gpu::fake_cuda
