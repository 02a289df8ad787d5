// A block of memory that operations of every transport in use may read into and write from.
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
  // Page-aligned. Without `allocate` it is this process's own, zeroed, whose pages are taken when
  // they are first touched.
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
  // They go before the memory.
  std::vector<std::shared_ptr<transport::Region>> regions_;
};

// Of an error of Create: the transport that could not register the memory. Empty where it was
// something else.
std::string RefusedBy(const absl::Status& error);

}  // namespace shoal::client
