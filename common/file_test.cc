#include "common/file.h"

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
  auto mapped = MappedFile::Open(path);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ((*mapped)->bytes().size(), 3u);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++entries;
  }
  EXPECT_EQ(entries, 1) << "no temporary file is left";
}

TEST(File, ErrorsNameThePath) {
  EXPECT_THAT(std::string(ReadFile("/nonexistent/q").status().message()), HasSubstr("/nonexistent/q"));
  EXPECT_THAT(std::string(MappedFile::Open("/nonexistent/q").status().message()), HasSubstr("/nonexistent/q"));
  EXPECT_FALSE(ReadFile(testing::TempDir()).ok());
}

TEST(File, RefusesOversizedFiles) {
  const std::string path = testing::TempDir() + "/big";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(100, 'x')).ok());
  EXPECT_FALSE(ReadFile(path, 99).ok());
  EXPECT_TRUE(ReadFile(path, 100).ok());
}

}  // namespace
}  // namespace shoal
