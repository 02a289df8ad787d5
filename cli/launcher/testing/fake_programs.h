// For tests: stand-ins for the three programs of a cluster, shell scripts in a folder of the test.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "core/base/file.h"
#include "gtest/gtest.h"

namespace shoal::cli {

class FakePrograms : public ::testing::Test {
 protected:
  // Write their arguments or environment to the log, and wait to be ended.
  static constexpr const char* kFakeCoordinator = R"(#!/bin/sh
echo "$@" end
while [ $# -gt 0 ]; do
  if [ "$1" = --port-file ]; then echo 4321 > "$2.new"; mv "$2.new" "$2"; fi
  shift
done
exec sleep 60
)";
  static constexpr const char* kFakeMember =
      "#!/bin/sh\necho token $SHOAL_TOKEN threads $OMP_NUM_THREADS\nexec sleep 60\n";

  void SetUp() override {
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "/" + test.test_suite_name() + "_" + test.name() +
              std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(CreateDirectories(folder_).ok());
    Program("shoal-coordinator", kFakeCoordinator);
    Program("shoal-server", kFakeMember);
    Program("shoal-worker", kFakeMember);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Program(const std::string& name, const std::string& script) const {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/" + name, script).ok());
    ASSERT_EQ(chmod((folder_ + "/" + name).c_str(), 0755), 0);
  }

  std::string folder_;
};

}  // namespace shoal::cli
