// Memory that operations of every transport in use can read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/options.h"
#include "core/transport/transport.h"

namespace shoal::client {

class RegisteredMemory {
 public:
  // Page-aligned. Without `allocate` it is this process's own memory, zeroed; pages are allocated
  // on first touch.
  static absl::StatusOr<std::unique_ptr<RegisteredMemory>> Create(
      int64_t bytes, std::span<transport::Transport* const> transports,
      const BufferAllocator& allocate = nullptr);
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  std::span<std::byte> bytes() { return {data_.get(), size_}; }

 private:
  RegisteredMemory(std::shared_ptr<std::byte> data, size_t size)
      : data_(std::move(data)), size_(size) {}

  const std::shared_ptr<std::byte> data_;
  const size_t size_;
  // Destroyed before the memory.
  std::vector<std::shared_ptr<transport::Region>> regions_;
};

// The transport that could not register the memory, from an error of Create; empty for other
// errors.
std::string RefusedBy(const absl::Status& error);

}  // namespace shoal::client
