// Preloaded into programs under test: steps the wall's clock by the seconds in the file named by
// SHOAL_CLOCK_MISHAP, from moment to moment; without that file, or with an empty one, it is right.
// What waits until a time of that clock waits as it would in a kernel whose clock is set, those
// under way too. The steady clock is left alone.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr int64_t kSecond = 1'000'000'000;     // nanoseconds
constexpr int64_t kLookAgain = kSecond / 100;  // whether a wait's clock was stepped

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

using SystemCall = long (*)(long, ...);  // NOLINT(google-runtime-int): as the C library has it

SystemCall NextCall() {
  static const auto next = Next<SystemCall>("syscall");
  return next;
}

int64_t Step() {
  const char* path = std::getenv("SHOAL_CLOCK_MISHAP");
  const int fd = path != nullptr ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) {
    return 0;
  }
  char text[32] = {};
  const ssize_t size = read(fd, text, sizeof(text) - 1);
  close(fd);
  return size > 0 ? std::atoll(text) * kSecond : 0;
}

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

timespec Timespec(int64_t nanoseconds) {
  return {.tv_sec = nanoseconds / kSecond, .tv_nsec = nanoseconds % kSecond};
}

int64_t KernelTime() {
  timespec now = {};
  NextCall()(SYS_clock_gettime, CLOCK_REALTIME, &now);
  return Nanoseconds(now);
}

int64_t WallTime() {
  const int kept = errno;
  const int64_t now = KernelTime() + Step();
  errno = kept;
  return now;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* result) {
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
    *result = Timespec(WallTime());
    return 0;
  }
  static const auto next = Next<int (*)(clockid_t, timespec*)>("clock_gettime");
  return next(clock, result);
}

int gettimeofday(timeval* result, void*) {
  const int64_t now = WallTime();
  *result = {.tv_sec = now / kSecond, .tv_usec = now % kSecond / 1000};
  return 0;
}

time_t time(time_t* result) {
  const time_t now = WallTime() / kSecond;
  if (result != nullptr) {
    *result = now;
  }
  return now;
}

// Abseil's waits, those of gRPC among them, come through here.
long syscall(long number, ...) {  // NOLINT(google-runtime-int)
  long arguments[6];              // NOLINT(google-runtime-int)
  std::va_list rest;
  va_start(rest, number);
  for (auto& argument : arguments) {
    argument = va_arg(rest, long);  // NOLINT(google-runtime-int)
  }
  va_end(rest);
  auto& [word, operation, value, until, second, mask] = arguments;
  if (number != SYS_futex || (operation & FUTEX_CLOCK_REALTIME) == 0 || until == 0) {
    return NextCall()(number, word, operation, value, until, second, mask);
  }
  const int64_t deadline = Nanoseconds(*reinterpret_cast<const timespec*>(until));
  while (true) {
    const int64_t left = deadline - WallTime();
    const timespec look = Timespec(KernelTime() + std::clamp<int64_t>(left, 0, kLookAgain));
    const auto result = NextCall()(number, word, operation, value, &look, second, mask);
    if (result == 0 || errno != ETIMEDOUT || left <= kLookAgain) {
      return result;
    }
  }
}

}  // extern "C"
