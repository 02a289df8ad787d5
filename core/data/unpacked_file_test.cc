#include "core/data/unpacked_file.h"

#include <zlib.h>
#include <zstd.h>

#include <string>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

class UnpackedFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Read(const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(path_, contents).ok());
    SHOAL_ASSIGN_OR_RETURN(const auto file, UnpackedFile::Open(path_));
    std::string text;
    char block[1000];
    while (true) {
      SHOAL_ASSIGN_OR_RETURN(const size_t got, file->Read(block, sizeof(block)));
      if (got == 0) {
        EXPECT_EQ(file->bytes_read(), static_cast<int64_t>(contents.size()));
        return text;
      }
      text.append(block, got);
    }
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "file";
};

std::string SomeText() {
  Random random(1);
  std::string text;
  while (text.size() < 1'000'000) {
    text += fmt::format("{} ", random.Below(1000));
  }
  return text;
}

TEST_F(UnpackedFileTest, ReadsWhatWasPacked) {
  const std::string text = SomeText();
  for (const std::string& contents :
       {text, Gzip(text), Zstd(text), Gzip(text.substr(0, 10)) + Gzip(text.substr(10)),
        Zstd(text.substr(0, 10)) + Zstd(text.substr(10)),
        std::string("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12) + Zstd(text)}) {
    const auto read = Read(contents);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, text);
  }
  EXPECT_EQ(Read("").value(), "");
  EXPECT_EQ(Read(Gzip("")).value(), "");
  EXPECT_EQ(Read(Zstd("")).value(), "");
}

TEST_F(UnpackedFileTest, SaysWhatIsCutShortOrDamaged) {
  const std::string text = SomeText();
  for (std::string packed : {Gzip(text), Zstd(text)}) {
    EXPECT_REFUSED(Read(packed.substr(0, packed.size() / 2)).status(), "is the file cut short?");
    packed[packed.size() / 2] ^= 1;
    packed[packed.size() / 2 + 1] ^= 0x55;
    EXPECT_EQ(Read(packed).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_REFUSED(UnpackedFile::Open("/").status(), "is a folder");
  EXPECT_REFUSED(UnpackedFile::Open("/nonexistent").status(), "/nonexistent");
}

}  // namespace
}  // namespace shoal::worker
