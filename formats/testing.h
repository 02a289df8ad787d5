// Helpers of this folder's tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/random.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::formats {

// A folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(testing::TempDir() + "formats-" + SecureToken()) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Empty where the environment names no test data.
inline std::string TestData() {
  const char* folder = std::getenv("SHOAL_TEST_DATA");
  return folder == nullptr ? "" : folder;
}

#define ASSERT_OK(expression)                                          \
  do {                                                                 \
    const absl::Status shoal_tested = (expression);                    \
    ASSERT_TRUE(shoal_tested.ok()) << ::shoal::Describe(shoal_tested); \
  } while (false)

// The status refuses with a message that contains the text.
#define EXPECT_REFUSED(status, text)                                                      \
  do {                                                                                    \
    const absl::Status shoal_tested = (status);                                           \
    EXPECT_FALSE(shoal_tested.ok());                                                      \
    EXPECT_THAT(std::string(::shoal::Message(shoal_tested)), ::testing::HasSubstr(text)); \
    EXPECT_EQ(::shoal::Message(shoal_tested).find('\n'), std::string_view::npos);         \
  } while (false)

}  // namespace shoal::formats
