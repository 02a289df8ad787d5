// Fibers: stacks between which one OS thread switches, so that the threads of a GPU's block can
// wait for each other on the CPU. A switch costs a few nanoseconds. Only the fake includes it;
// it switches under one lock, from one OS thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace shoal::gpu::fake_cuda {

class Fiber {
 public:
  // The caller's own stack, to which the others return.
  Fiber();
  // A new stack on which `entry`, which must not return, starts at the first switch to it.
  Fiber(std::byte* stack, size_t bytes, void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Switches from this fiber, on which the caller must run, to the other.
  void SwitchTo(Fiber& other);
  // Call it first on a new fiber's stack.
  static void Arrived();

 private:
  void* stack_pointer_ = nullptr;
  // What sanitizers know of the stack.
  [[maybe_unused]] const void* bottom_ = nullptr;
  [[maybe_unused]] size_t bytes_ = 0;
  [[maybe_unused]] void* sanitizer_ = nullptr;
  [[maybe_unused]] bool owns_sanitizer_ = false;
  std::unique_ptr<std::byte[]> context_;  // if there is no switch of our own
};

// Keeps used fibers, and stacks for new ones with a page below each that none may touch: an
// overflow crashes.
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

}  // namespace shoal::gpu::fake_cuda
