// A block of memory that operations of every transport in use may read into and write from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace shoal::client {

class RegisteredMemory {
 public:
  // Zeroed, page-aligned. Pages are taken when they are first touched.
  static absl::StatusOr<std::unique_ptr<RegisteredMemory>> Create(
      int64_t bytes, std::span<transport::Transport* const> transports);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  std::span<std::byte> bytes() { return {data_, size_}; }

 private:
  RegisteredMemory(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* data_;
  size_t size_;
  std::vector<std::shared_ptr<transport::Region>> regions_;
};

// Of an error of Create: the transport that could not register the memory. Empty where it was
// something else.
std::string RefusedBy(const absl::Status& error);

}  // namespace shoal::client
