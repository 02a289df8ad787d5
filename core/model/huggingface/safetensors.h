// safetensors files: an 8-byte header length, a JSON header, raw little-endian tensors. Read
// through a memory map, written tensor by tensor. The header is hostile until checked: size, JSON,
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
  std::span<const std::byte> data;  // lives as long as the file object
};

class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();

  const std::map<std::string, SafetensorsEntry>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  const std::string& path() const;

 private:
  struct State;
  explicit SafetensorsFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Parses a header in memory, for tests and fuzzing: `bytes` is the whole file.
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensors(
    std::span<const std::byte> bytes, std::map<std::string, std::string>* metadata);

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
