// safetensors files: an 8-byte header length, a JSON header, raw little-endian tensors. Read by
// range of a tensor, written tensor by tensor. The header is hostile until checked: size, JSON,
// names, element types, shapes and offsets, no overlap and no gap, everything within the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/dtype.h"

namespace shoal::formats {

struct SafetensorsEntry {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its data in the file
  int64_t bytes = 0;
};

// Thread-safe.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();

  const std::map<std::string, SafetensorsEntry>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  const std::string& path() const;
  // Fills `out` with the data of one of its tensors from that byte of it on.
  absl::Status Read(const SafetensorsEntry& tensor, int64_t offset, std::span<std::byte> out) const;

 private:
  struct State;
  explicit SafetensorsFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Both parse the first bytes of a file of `file_bytes`. SafetensorsHeadBytes returns the size of
// header and its length, and needs kSafetensorsLengthBytes; ParseSafetensors needs all of it.
inline constexpr int64_t kSafetensorsLengthBytes = 8;
absl::StatusOr<int64_t> SafetensorsHeadBytes(std::span<const std::byte> head, int64_t file_bytes);
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensors(
    std::span<const std::byte> head, int64_t file_bytes,
    std::map<std::string, std::string>* metadata);

// Writes one file atomically: shapes are announced first, then the data of each tensor is streamed
// in that order.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};
class SafetensorsWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<SafetensorsTensor>& tensors,
      const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  // Appends the next piece of data, in order of the tensors; pieces need not match tensor
  // boundaries.
  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Finish();

 private:
  struct State;
  explicit SafetensorsWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shoal::formats
