#include "core/base/process/dynamic_library.h"

#include <cstdlib>

#include "core/base/file.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

using testing::HasSubstr;

TEST(OpenLibrary, TakesTheFirstThatLoadsByItsPlainName) {
  const auto library = OpenLibrary({"libshoal-no-such.so.1", "libm.so.6"}, {});
  ASSERT_TRUE(library.ok()) << library.status();
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(FindFunction(*library, "cos", cosine));
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_THAT(PathOf(*library), testing::EndsWith("/libm.so.6"));
  EXPECT_FALSE(FindFunction(*library, "shoal_no_such_function", cosine));
  EXPECT_EQ(cosine, nullptr);
}

TEST(OpenLibrary, SaysWhyEachNameDidNotLoad) {
  const std::string folder = testing::TempDir() + "/dynamic_library_test";
  ASSERT_TRUE(CreateDirectories(folder).ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/libshoal-broken.so.1", "not a library").ok());
  const auto library =
      OpenLibrary({"libshoal-broken.so.1", "libshoal-no-such.so.1"}, {"/no/such/folder", folder});
  ASSERT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  const std::string message(Message(library.status()));
  // Names the file that exists, not the plain name that was not found.
  EXPECT_THAT(message, HasSubstr(folder + "/libshoal-broken.so.1"));
  EXPECT_THAT(message, HasSubstr("libshoal-no-such.so.1"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(LibraryFolders, AreTheVariablesThenThoseBesideTheProgram) {
  ASSERT_EQ(::setenv("SHOAL_TEST_LIBRARIES", "/first::/second", 1), 0);
  const auto folders = LibraryFolders("SHOAL_TEST_LIBRARIES");
  ASSERT_EQ(folders.size(), 3u);
  EXPECT_EQ(folders[0], "/first");
  EXPECT_EQ(folders[1], "/second");
  EXPECT_THAT(folders[2], testing::EndsWith("/lib"));
  ASSERT_EQ(::unsetenv("SHOAL_TEST_LIBRARIES"), 0);
  EXPECT_EQ(LibraryFolders("SHOAL_TEST_LIBRARIES").size(), 1u);
}

}  // namespace
}  // namespace shoal
