#include "core/base/file.h"

#include <cstring>
#include <filesystem>
#include <fstream>

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
  auto mapped = MappedFile::Open(path);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ((*mapped)->bytes().size(), 3u);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++entries;
  }
  EXPECT_EQ(entries, 1) << "no temporary file is left";
}

TEST(File, ReleasedPagesLeaveMemoryAndComeBack) {
  const std::string path = testing::TempDir() + "/released";
  std::string contents(1 << 20, '\0');
  for (size_t i = 0; i < contents.size(); ++i) {
    contents[i] = static_cast<char>(i * 31 / 7);
  }
  ASSERT_TRUE(WriteFileAtomically(path, contents).ok());
  auto mapped = MappedFile::Open(path);
  ASSERT_TRUE(mapped.ok());
  const std::span<const std::byte> bytes = (*mapped)->bytes();
  const auto is_whole = [&] {
    return std::memcmp(bytes.data(), contents.data(), contents.size()) == 0;
  };
  const auto resident = [] {  // pages of files in this process
    std::ifstream statm("/proc/self/statm");
    int64_t all = 0, in_memory = 0, of_files = 0;
    statm >> all >> in_memory >> of_files;
    return of_files;
  };
  EXPECT_TRUE(is_whole());
  const int64_t before = resident();
  ReleasePages(bytes.subspan(5000, bytes.size() - 10000));
  EXPECT_LT(resident(), before - 200);
  EXPECT_TRUE(is_whole());
  ReleasePages({});
}

TEST(File, ErrorsNameThePath) {
  EXPECT_THAT(std::string(ReadFile("/nonexistent/q").status().message()),
              HasSubstr("/nonexistent/q"));
  EXPECT_THAT(std::string(MappedFile::Open("/nonexistent/q").status().message()),
              HasSubstr("/nonexistent/q"));
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
