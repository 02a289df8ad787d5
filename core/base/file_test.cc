#include "core/base/file.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

TEST(File, WritesAtomicallyAndReadsBack) {
  const std::string folder = testing::TempDir() + "/file_test/a/b";
  ASSERT_TRUE(CreateDirectories(folder).ok());
  const std::string path = folder + "/x";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(*ReadFile(path), "two");
  EXPECT_EQ(std::filesystem::file_size(path), 3u);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++entries;
  }
  EXPECT_EQ(entries, 1) << "no temporary file is left";
}

TEST(InputFile, ReadsAnyRange) {
  const std::string path = testing::TempDir() + "/ranges";
  ASSERT_TRUE(WriteFileAtomically(path, "0123456789").ok());
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 10);
  const auto read = [&](int64_t offset, size_t count) {
    std::string out(count, '?');
    const absl::Status status = file->Read(offset, std::as_writable_bytes(std::span(out)));
    return status.ok() ? out : std::string(status.message());
  };
  EXPECT_EQ(read(0, 10), "0123456789");
  EXPECT_EQ(read(3, 4), "3456");
  EXPECT_EQ(read(10, 0), "");
  for (const auto& [offset, count] : {std::pair<int64_t, size_t>{7, 4}, {-1, 2}, {11, 0}}) {
    EXPECT_THAT(read(offset, count), HasSubstr(path + ": there are no"));
  }
}

TEST(InputFile, NamesAFileThatIsCutShortWhileOpen) {
  const std::string path = testing::TempDir() + "/cut";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(100000, 'x')).ok());
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, 5000);
  std::vector<std::byte> out(20000);
  const absl::Status status = file->Read(0, out);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(),
            path +
                " was cut short while it was open: byte 5000 of 100000 is gone; put a whole "
                "copy in its place and start again");
}

TEST(File, ErrorsNameThePath) {
  EXPECT_THAT(std::string(ReadFile("/nonexistent/q").status().message()),
              HasSubstr("/nonexistent/q"));
  EXPECT_THAT(std::string(InputFile::Open("/nonexistent/q").status().message()),
              HasSubstr("/nonexistent/q"));
  EXPECT_THAT(std::string(InputFile::Open(testing::TempDir()).status().message()),
              HasSubstr("not a regular file"));
  EXPECT_FALSE(ReadFile(testing::TempDir()).ok());
  EXPECT_EQ(WriteFileAtomically("/nonexistent/q", "").message(),
            "cannot create /nonexistent/q: No such file or directory");
}

TEST(File, RefusesOversizedFiles) {
  const std::string path = testing::TempDir() + "/big";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(100, 'x')).ok());
  EXPECT_FALSE(ReadFile(path, 99).ok());
  EXPECT_TRUE(ReadFile(path, 100).ok());
}

}  // namespace
}  // namespace shoal
