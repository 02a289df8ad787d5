#include "client/registered_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "common/bytes.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::client {
namespace {

constexpr char kRefusedBy[] = "shoal/refused-by";

}  // namespace

absl::StatusOr<std::unique_ptr<RegisteredMemory>> RegisteredMemory::Create(
    int64_t bytes, std::span<transport::Transport* const> transports) {
  constexpr int64_t kPage = 4096;
  const auto size = static_cast<size_t>(RoundUp(std::max<int64_t>(bytes, 1), kPage));
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoToStatus(errno, fmt::format("cannot take {} for weights and gradients in flight",
                                            FormatBytes(static_cast<int64_t>(size))));
  }
  // Without huge pages a copy at memory speed spends a good part of its time on page faults.
  ::madvise(data, size, MADV_HUGEPAGE);
  std::unique_ptr<RegisteredMemory> memory(
      new RegisteredMemory(static_cast<std::byte*>(data), size));
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

RegisteredMemory::~RegisteredMemory() {
  regions_.clear();
  ::munmap(data_, size_);
}

}  // namespace shoal::client
