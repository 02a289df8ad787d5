// Preloaded into programs under test: makes the disk misbehave for checkpoint shards, as the file
// named by SHOAL_DISK_MISHAP says from moment to moment: "slow N" (milliseconds for each write),
// "full" (ENOSPC), "read-only" (EROFS); without that file, or with an empty one, all is well.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string Mishap() {
  const char* path = std::getenv("SHOAL_DISK_MISHAP");
  std::FILE* file = path != nullptr ? std::fopen(path, "re") : nullptr;
  if (file == nullptr) {
    return "";
  }
  char text[64] = {};
  const size_t read = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  return {text, read};
}

bool IsShard(const char* path) { return std::strstr(path, ".shard") != nullptr; }

bool IsShard(int fd) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), path, sizeof(path) - 1) > 0 && IsShard(path);
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int Open(const char* name, const char* path, int flags, mode_t mode) {
  if ((flags & O_ACCMODE) != O_RDONLY && IsShard(path) && Mishap() == "read-only") {
    errno = EROFS;
    return -1;
  }
  return Next<int (*)(const char*, int, ...)>(name)(path, flags, mode);
}

mode_t ModeOf(int flags, std::va_list rest) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(rest, int)) : 0;
}

ssize_t Write(const char* name, int fd, const void* data, size_t size, off_t offset) {
  if (IsShard(fd)) {
    const std::string mishap = Mishap();
    if (mishap == "full") {
      errno = ENOSPC;
      return -1;
    }
    if (mishap.rfind("slow ", 0) == 0) {
      usleep(static_cast<useconds_t>(std::atoi(mishap.c_str() + 5)) * 1000);
    }
  }
  return Next<ssize_t (*)(int, const void*, size_t, off_t)>(name)(fd, data, size, offset);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = ModeOf(flags, rest);
  va_end(rest);
  return Open("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  std::va_list rest;
  va_start(rest, flags);
  const mode_t mode = ModeOf(flags, rest);
  va_end(rest);
  return Open("open64", path, flags, mode);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return Write("pwrite", fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return Write("pwrite64", fd, data, size, offset);
}

}  // extern "C"
