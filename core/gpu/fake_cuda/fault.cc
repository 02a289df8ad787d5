#include "core/gpu/fake_cuda/fault.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>

#include "core/gpu/fake_cuda/block.h"
#include "core/gpu/fake_cuda/fake_gpus.h"
#include "fmt/format.h"

namespace shoal::gpu::fake_cuda {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr size_t kSignalStackBytes = 64 << 10;

// The process is about to end, so what this calls need not be safe in handlers; it does not take
// the lock, which the thread may hold.
void Describe(int number, siginfo_t* info, void*) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const std::string thread = RunningThreadName();
  if (number == SIGILL) {  // what the compiler emits where arithmetic of kernels overflows
    const std::string text =
        fmt::format("fake cuda: {} overflowed an integer, or ran what is no instruction\n",
                    thread.empty() ? "the host" : thread);
    (void)!write(STDERR_FILENO, text.data(), text.size());
    signal(SIGILL, SIG_DFL);
    return;
  }
  const int64_t behind = BytesBehindShared(info->si_addr);
  const std::string place =
      behind >= 0 ? fmt::format("{} B behind the block's dynamic shared memory", behind)
                  : FakeGpus::The().memory->Describe(info->si_addr);
  const std::string text =
      fmt::format("fake cuda: {} touched {}, {}\n", thread.empty() ? "the host" : thread,
                  fmt::ptr(info->si_addr), place);
  (void)!write(STDERR_FILENO, text.data(), text.size());
  signal(SIGSEGV, SIG_DFL);  // and the fault happens again
}

}  // namespace

void DescribeFaults() {
  if (kSanitized) {
    return;
  }
  static thread_local std::unique_ptr<std::array<std::byte, kSignalStackBytes>> stack;
  if (stack != nullptr) {
    return;
  }
  stack = std::make_unique<std::array<std::byte, kSignalStackBytes>>();
  const stack_t alternative{.ss_sp = stack->data(), .ss_flags = 0, .ss_size = kSignalStackBytes};
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = Describe;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace shoal::gpu::fake_cuda
