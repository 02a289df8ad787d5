// Folders for tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal {

// A folder that is removed when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(testing::TempDir() + "shoal-" + SecureToken()) {
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

}  // namespace shoal
