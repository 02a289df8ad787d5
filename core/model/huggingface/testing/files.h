// Helpers of this folder's tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gtest/gtest.h"

namespace shoal::formats {

// A folder that is removed when the test ends.
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

// Empty if the environment names no test data.
inline std::string TestData() {
  const char* folder = std::getenv("SHOAL_TEST_DATA");
  return folder == nullptr ? "" : folder;
}

// Succeeds if the status is an error of one line that contains the text.
inline testing::AssertionResult Refuses(const absl::Status& status, const std::string& text) {
  const std::string message(Message(status));
  if (!status.ok() && message.find(text) != std::string::npos &&
      message.find('\n') == std::string::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << Describe(status) << "\nexpected one line with: " << text;
}

#define EXPECT_REFUSED(status, text) EXPECT_TRUE(Refuses(status, text))

}  // namespace shoal::formats
