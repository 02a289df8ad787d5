#include "client/registered_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::client {
namespace {

constexpr char kRefusedBy[] = "shoal/refused-by";
constexpr int64_t kPage = 4096;

absl::StatusOr<std::shared_ptr<std::byte>> MapMemory(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoToStatus(errno, fmt::format("cannot take {} for weights and gradients in flight",
                                            FormatBytes(bytes)));
  }
  // Without huge pages, page faults take a good part of a copy's time at memory speed.
  ::madvise(data, size, MADV_HUGEPAGE);
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data),
                                    [size](std::byte* memory) { ::munmap(memory, size); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RegisteredMemory::Create(
    int64_t bytes, std::span<transport::Transport* const> transports,
    const BufferAllocator& allocate) {
  const int64_t size = RoundUp(std::max<int64_t>(bytes, 1), kPage);
  SHOAL_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> data,
                         allocate ? allocate(size) : MapMemory(size));
  SHOAL_CHECK(reinterpret_cast<uintptr_t>(data.get()) % kPage == 0);
  std::unique_ptr<RegisteredMemory> memory(
      new RegisteredMemory(std::move(data), static_cast<size_t>(size)));
  for (transport::Transport* transport : transports) {
    auto region = transport->Register(memory->bytes(), transport::Access::kLocal);
    if (!region.ok()) {
      const std::string name(transport->name());
      absl::Status error = Annotate(region.status(), name);
      error.SetPayload(kRefusedBy, absl::Cord(name));
      return error;
    }
    memory->regions_.push_back(*std::move(region));
  }
  return memory;
}

std::string RefusedBy(const absl::Status& error) {
  const auto name = error.GetPayload(kRefusedBy);
  return name.has_value() ? std::string(*name) : "";
}

}  // namespace shoal::client
