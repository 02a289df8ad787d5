// Runs a test program in a folder of its own for what it and the programs that it starts write
// besides. That goes when all is well, and stays to be looked at when a test fails.
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (std::getenv("TEST_TMPDIR") != nullptr) {  // the folder of who started it
    return RUN_ALL_TESTS();
  }
  std::string folder = testing::TempDir() + "shoal-test-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 1;
  }
  chmod(folder.c_str(), 0755);  // programs of another user write below it
  setenv("TEST_TMPDIR", folder.c_str(), 1);
  setenv("TMPDIR", folder.c_str(), 1);
  const int result = RUN_ALL_TESTS();
  if (result == 0) {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
  } else {
    std::fprintf(stderr, "what the tests left is in %s\n", folder.c_str());
  }
  return result;
}
