// Encodes and decodes handshakes: little-endian fixed-width integers and length-prefixed strings. A
// reader never reads past the end: after the first short read it stays failed and returns zeros, so
// callers check ok() once, at the end.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal::transport {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian and so are all supported machines");

class ByteWriter {
 public:
  void U32(uint32_t value) { Raw(&value, sizeof value); }
  void U64(uint64_t value) { Raw(&value, sizeof value); }
  void I64(int64_t value) { Raw(&value, sizeof value); }
  void String(std::string_view value) {
    U32(static_cast<uint32_t>(value.size()));
    Raw(value.data(), value.size());
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Raw(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  uint32_t U32() { return Fixed<uint32_t>(); }
  uint64_t U64() { return Fixed<uint64_t>(); }
  int64_t I64() { return Fixed<int64_t>(); }
  std::string String() {
    const uint32_t size = U32();
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  bool ok() const { return ok_; }
  // True if every read succeeded and nothing is left over.
  bool complete() const { return ok_ && rest_.empty(); }
  size_t left() const { return rest_.size(); }

 private:
  template <typename T>
  T Fixed() {
    T value = 0;
    if (!ok_ || rest_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace shoal::transport
