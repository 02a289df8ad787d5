// How a partition of a block lies where its matrices are in NF4 (lora.quantize), at servers, on the
// wire and at clients: tensor after tensor that it has a part of, each at a multiple of
// kNf4PartAlignment bytes; of a matrix the scales, then the codes; of any other tensor its elements
// in fp32; of padding nothing.
//
// Blocks of 64 are cut off a matrix from its first element on, row after row. One that a partition
// begins or ends within has its scale in both, so values do not depend on how units are cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

inline constexpr int64_t kNf4PartAlignment = 64;

class Nf4Partition {
 public:
  // Elements [offset, offset + count) of the unit, both multiples of kTensorAlignment.
  Nf4Partition(const UnitSpec& unit, int64_t offset, int64_t count);

  int64_t bytes() const { return bytes_; }
  // Reads its elements, and those that share a block with them, and writes all bytes.
  absl::Status Encode(const UnitReader& read, std::byte* to) const;
  // Writes all elements in a type, fp32 or bf16, padding as zero.
  void Decode(const std::byte* from, DType dtype, std::byte* to) const;

 private:
  // Of one tensor.
  struct Part {
    bool matrix = false;
    int64_t first = 0;   // of the partition's elements
    int64_t count = 0;   // of the tensor's, here
    int64_t before = 0;  // elements of the first block that the partition before has
    int64_t after = 0;   // of the last block, that the next has
    int64_t at = 0;      // byte

    int64_t blocks() const;
  };

  template <typename T>
  void DecodeTo(const std::byte* from, T* to) const;
  void EncodePart(const Part& part, std::span<const float> weights, std::byte* to) const;

  const int unit_;
  const int64_t offset_;
  const int64_t count_;
  std::vector<Part> parts_;
  int64_t bytes_ = 0;
};

}  // namespace shoal::plan
