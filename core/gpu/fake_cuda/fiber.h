// Fibers: stacks that one OS thread goes back and forth between, so that the threads of a GPU's
// block can wait for each other on the CPU. A switch costs a few nanoseconds. Included by the
// emulation alone, which switches under one lock, from one OS thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace shoal::gpu::emulation {

class Fiber {
 public:
  // The stack of whoever calls: what the others come back to.
  Fiber();
  // A stack of its own on which `entry`, which must not return, begins at the first switch to it.
  Fiber(std::byte* stack, size_t bytes, void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From this fiber, which the caller runs on, to the other.
  void SwitchTo(Fiber& other);
  // First thing on a new fiber's stack.
  static void Arrived();

 private:
  void* stack_pointer_ = nullptr;
  // What sanitizers are told of the stack.
  [[maybe_unused]] const void* bottom_ = nullptr;
  [[maybe_unused]] size_t bytes_ = 0;
  [[maybe_unused]] void* sanitizer_ = nullptr;
  [[maybe_unused]] bool owns_sanitizer_ = false;
  std::unique_ptr<std::byte[]> context_;  // where there is no switch of our own
};

// Fibers that were used and are free, and stacks for new ones, with a page that none may touch
// below each: an overflow crashes.
class FiberPool {
 public:
  explicit FiberPool(void (*entry)()) : entry_(entry) {}
  ~FiberPool();

  Fiber& Take();
  void Give(Fiber& fiber) { free_.push_back(&fiber); }

 private:
  void Grow();

  void (*const entry_)();
  std::vector<std::byte*> mappings_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
};

}  // namespace shoal::gpu::emulation
