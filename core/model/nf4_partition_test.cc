#include "core/model/nf4_partition.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bf16.h"
#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/nf4.h"
#include "core/base/testing/status.h"
#include "core/model/partition.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::plan {
namespace {

// A block whose tensors begin at any multiple of 16, and whose matrices have rows of any length.
UnitSpec Block() {
  UnitSpec block = {.index = 3, .kind = UnitKind::kBlock, .nf4 = true};
  const std::pair<int64_t, int64_t> shapes[] = {{24, 0}, {7, 24}, {13, 9}, {5, 0}, {20, 24}};
  for (const auto& [rows, columns] : shapes) {
    block.tensors.push_back({.rows = rows, .columns = columns, .offset = block.count});
    block.count +=
        (block.tensors.back().count() + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  return block;
}

// Not zero in padding, which nobody may read.
float WeightAt(int64_t index) { return std::sin(0.7F * static_cast<float>(index)) + 0.01F; }

absl::Status ReadWeights(int unit, int64_t offset, std::span<float> out) {
  EXPECT_EQ(unit, 3);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = WeightAt(offset + static_cast<int64_t>(i));
  }
  return absl::OkStatus();
}

// What a block's elements become, matrix by matrix.
std::vector<float> Expected(const UnitSpec& block) {
  std::vector<float> all(static_cast<size_t>(block.count), 0.0F);
  for (const TensorSpec& tensor : block.tensors) {
    std::vector<float> weights(static_cast<size_t>(tensor.count()));
    EXPECT_TRUE(ReadWeights(3, tensor.offset, weights).ok());
    for (size_t begin = 0; begin < weights.size() && tensor.rank() == 2; begin += kNf4Block) {
      const auto part = std::span(weights).subspan(
          begin, std::min(weights.size() - begin, static_cast<size_t>(kNf4Block)));
      std::vector<uint8_t> codes(kNf4Block / 2);
      const float scale = EncodeNf4(part, codes.data());
      DecodeNf4(scale, codes.data(), std::ssize(part), part.data());
    }
    std::ranges::copy(weights, all.begin() + tensor.offset);
  }
  return all;
}

std::vector<float> Decoded(const UnitSpec& block, const PartitionSpec& partition) {
  const Nf4Partition nf4(block, partition.offset, partition.count);
  EXPECT_EQ(nf4.bytes(), partition.nf4_bytes);
  std::vector<std::byte> wire(static_cast<size_t>(nf4.bytes()), std::byte{0xEE});
  int reads = 0;
  const auto read = [&reads](int unit, int64_t offset, std::span<float> out) {
    ++reads;
    return ReadWeights(unit, offset, out);
  };
  EXPECT_TRUE(nf4.Encode(read, wire.data()).ok());
  EXPECT_EQ(reads, 1) << "files are read record by record";
  std::vector<float> values(static_cast<size_t>(partition.count), NAN);
  nf4.Decode(wire.data(), DType::kF32, reinterpret_cast<std::byte*>(values.data()));
  std::vector<BFloat16> narrow(values.size(), BFloat16(NAN));
  nf4.Decode(wire.data(), DType::kBF16, reinterpret_cast<std::byte*>(narrow.data()));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(narrow[i].bits, BFloat16(values[i]).bits);
  }
  return values;
}

TEST(Nf4Partition, HasTheSameValuesHoweverUnitsAreCut) {
  const UnitSpec block = Block();
  std::vector<UnitSpec> units(4);
  units[3] = block;
  const std::vector<float> expected = Expected(block);
  for (const int64_t bytes : {256, 512, 768, 1 << 20}) {
    std::vector<float> values;
    const std::vector<PartitionSpec> partitions = BuildPartitions(units, bytes);
    EXPECT_EQ(partitions.size() == 1, bytes == 1 << 20);
    for (const PartitionSpec& partition : partitions) {
      const std::vector<float> part = Decoded(block, partition);
      values.insert(values.end(), part.begin(), part.end());
    }
    EXPECT_EQ(values, expected) << bytes;
  }
}

TEST(Nf4Partition, TakesAsLittleAsItSays) {
  UnitSpec block = {.index = 3, .kind = UnitKind::kBlock, .nf4 = true};
  block.tensors = {{.rows = 64, .columns = 256}, {.rows = 256, .offset = 64 * 256}};
  block.count = 64 * 256 + 256;
  EXPECT_EQ(Nf4Partition(block, 0, block.count).bytes(), 64 * 256 * 9 / 16 + 256 * 4);
  const PartitionSpec partition = {.count = block.count, .frozen = true, .nf4_bytes = 10240};
  EXPECT_EQ(partition.wire_bytes(DType::kBF16), 10240);
  EXPECT_EQ(PartitionSpec{.count = 64}.wire_bytes(DType::kBF16), 128);
}

// As tests/references/make_nf4.py has them.
std::vector<float> GoldenMatrix(int64_t rows, int64_t columns) {
  std::vector<float> matrix;
  for (uint32_t place = 0; place < static_cast<uint32_t>(rows * columns); ++place) {
    const uint32_t bits = place * 2654435761U;
    const int exponent = static_cast<int>(place / 64 % 5) - 23;
    matrix.push_back(
        std::ldexp(static_cast<float>(static_cast<int>(bits >> 8) - (1 << 23)), exponent));
  }
  if (rows == 4 && columns == 64) {
    std::fill(matrix.begin() + 64, matrix.begin() + 128, 0.0F);
  }
  return matrix;
}

uint64_t Hexadecimal(const std::string& digits) { return std::stoull(digits, nullptr, 16); }

TEST(Nf4Partition, HasTheBitsOfBitsandbytes) {
  const auto text = ReadFile(SHOAL_REFERENCES "/lora/nf4.json");
  ASSERT_OK(text.status());
  for (const auto& golden : nlohmann::json::parse(*text)) {
    const int64_t rows = golden["shape"][0];
    const int64_t columns = golden["shape"][1];
    UnitSpec block = {.index = 3, .kind = UnitKind::kBlock, .nf4 = true};
    block.tensors = {{.rows = rows, .columns = columns}};
    block.count = RoundUp(rows * columns, kTensorAlignment);
    const std::vector<float> matrix = GoldenMatrix(rows, columns);
    const auto read = [&matrix](int, int64_t offset, std::span<float> out) {
      std::copy_n(matrix.begin() + offset, out.size(), out.begin());
      return absl::OkStatus();
    };
    const Nf4Partition nf4(block, 0, block.count);
    std::vector<std::byte> wire(static_cast<size_t>(nf4.bytes()));
    ASSERT_OK(nf4.Encode(read, wire.data()));
    const std::vector<std::string> scales = golden["scales"];
    for (size_t i = 0; i < scales.size(); ++i) {
      uint32_t scale = 0;
      std::memcpy(&scale, wire.data() + 4 * i, sizeof(scale));
      EXPECT_EQ(scale, Hexadecimal(scales[i])) << i;
    }
    const std::string codes = golden["codes"];
    for (size_t i = 0; i < codes.size() / 2; ++i) {
      EXPECT_EQ(std::to_integer<uint64_t>(wire[4 * scales.size() + i]),
                Hexadecimal(codes.substr(2 * i, 2)))
          << i;
    }
    std::vector<float> values(static_cast<size_t>(block.count));
    nf4.Decode(wire.data(), DType::kF32, reinterpret_cast<std::byte*>(values.data()));
    std::vector<BFloat16> narrow(values.size());
    nf4.Decode(wire.data(), DType::kBF16, reinterpret_cast<std::byte*>(narrow.data()));
    for (size_t i = 0; i < matrix.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), Hexadecimal(golden["values"][i])) << i;
      EXPECT_EQ(narrow[i].bits, Hexadecimal(golden["bfloat16"][i])) << i;
    }
  }
}

TEST(Nf4Partition, FailsAsItsWeightsDo) {
  const UnitSpec block = Block();
  const Nf4Partition nf4(block, 0, block.count);
  std::vector<std::byte> wire(static_cast<size_t>(nf4.bytes()));
  const auto fails = [](int, int64_t, std::span<float>) { return absl::DataLossError("torn"); };
  EXPECT_EQ(nf4.Encode(fails, wire.data()).message(), "torn");
}

}  // namespace
}  // namespace shoal::plan
