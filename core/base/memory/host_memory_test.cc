#include "core/base/memory/host_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    Write("/proc/meminfo",
          "MemTotal:       4194304 kB\nMemFree:  1 kB\nMemAvailable:   3145728 kB\n");
    ::unsetenv(kHostMemoryVariable);
  }
  ~HostMemoryTest() override { ::unsetenv(kHostMemoryVariable); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Expect(int64_t total, int64_t available) {
    const auto memory = ReadHostMemory(root_);
    ASSERT_TRUE(memory.ok()) << Describe(memory.status());
    EXPECT_EQ(memory->total, total);
    EXPECT_EQ(memory->available, available);
  }

  const TemporaryFolder folder_;
  const std::string& root_ = folder_.path();
};

TEST_F(HostMemoryTest, ReadsWhatTheKernelSays) {
  Expect(4 * kGiB, 3 * kGiB);
  Write("/proc/meminfo", "MemTotal:       4194304 kB\n");
  EXPECT_TRUE(absl::IsNotFound(ReadHostMemory(root_).status()));
}

TEST_F(HostMemoryTest, AControlGroupsLimitCounts) {
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.current", "536870912\n");
  Expect(4 * kGiB, 3 * kGiB);
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  Expect(kGiB, kGiB / 2);
  ::setenv(kHostMemoryVariable, "64GiB", 1);
  Expect(kGiB, kGiB / 2);
}

TEST_F(HostMemoryTest, WhatTheMachineReallyHasMayBeSaid) {
  ::setenv(kHostMemoryVariable, "64GiB", 1);
  Expect(64 * kGiB, 63 * kGiB);
  ::setenv(kHostMemoryVariable, "512MiB", 1);
  Expect(kGiB / 2, 0);
}

TEST_F(HostMemoryTest, ValuesThatAreNoSizeAreRefusedByName) {
  for (const char* const value : {"", "lots", "-1GiB", "0", "8 gigs"}) {
    ::setenv(kHostMemoryVariable, value, 1);
    const absl::Status status = ReadHostMemory(root_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << value;
    EXPECT_THAT(std::string(Message(status)), testing::HasSubstr("SHOAL_HOST_MEMORY"));
  }
}

}  // namespace
}  // namespace shoal
