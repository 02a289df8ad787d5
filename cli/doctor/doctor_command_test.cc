#include "cli/doctor/doctor_command.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

Machine GoodMachine() {
  Machine machine;
  machine.cores_online = machine.cores_available = 4;
  machine.avx2 = machine.fma = machine.avx512 = machine.avx512_bf16 = true;
  machine.memory = HostMemory{.total = 16 * kGiB, .available = 16 * kGiB};
  machine.memfd = machine.loopback_port = true;
  return machine;
}

const Check& Find(const std::vector<Check>& checks, const std::string& feature) {
  for (const Check& check : checks) {
    if (check.feature == feature) {
      return check;
    }
  }
  ADD_FAILURE() << "no check " << feature;
  return checks.front();
}

TEST(Doctor, AGoodMachineMissesNothingRequired) {
  for (const Check& check : Judge(GoodMachine())) {
    if (check.required) {
      EXPECT_EQ(check.health, Health::kOk) << check.feature;
    }
    EXPECT_EQ(check.advice.empty(), check.health == Health::kOk) << check.feature;
  }
}

TEST(Doctor, MemoryThatCannotBeToldIsNamed) {
  Machine machine = GoodMachine();
  machine.memory = InvalidArgument("SHOAL_HOST_MEMORY='lots'");
  const auto checks = Judge(machine);
  EXPECT_EQ(Find(checks, "memory").health, Health::kMissing);
  EXPECT_THAT(Find(checks, "memory").detail, testing::HasSubstr("SHOAL_HOST_MEMORY"));
}

TEST(Doctor, EveryShortcomingIsNamedWithAdvice) {
  Machine machine = GoodMachine();
  machine.avx2 = false;
  machine.avx512_bf16 = false;
  machine.memory->available = kGiB;
  machine.memfd = false;
  machine.loopback_port = false;
  const auto checks = Judge(machine);
  for (const auto* feature : {"training on the CPU", "control plane and tcp transport"}) {
    EXPECT_EQ(Find(checks, feature).health, Health::kMissing) << feature;
    EXPECT_TRUE(Find(checks, feature).required) << feature;
  }
  for (const Check& check : checks) {
    EXPECT_FALSE(check.advice.empty()) << check.feature;
  }
}

TEST(Doctor, CgroupQuotaLimitsCores) {
  Machine machine = GoodMachine();
  machine.cgroup_cores = 1.5;
  EXPECT_EQ(UsableCores(machine), 1);
  machine.cgroup_cores = 0.5;
  EXPECT_EQ(UsableCores(machine), 1) << "never none";
  machine.cgroup_cores = 0;
  EXPECT_EQ(UsableCores(machine), 4);
}

TEST(Doctor, ThreadsAreSharedOutEvenly) {
  EXPECT_EQ(ThreadsPerProcess(8, 2, 0), 4);
  EXPECT_EQ(ThreadsPerProcess(2, 3, 0), 1);
  EXPECT_EQ(ThreadsPerProcess(2, 3, 7), 7);
}

class FakeRoot : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/doctor_root_" + std::to_string(getpid());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const auto parent = std::filesystem::path(root_ + path).parent_path().string();
    ASSERT_TRUE(CreateDirectories(parent).ok());
    ASSERT_TRUE(WriteFileAtomically(root_ + path, text).ok());
  }
  std::string root_;
};

TEST_F(FakeRoot, ReadsWhatTheKernelSays) {
  Write("/proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: sse avx2 fma avx512f avx512bw avx512vl "
        "avx512dq amx_bf16\n");
  Write("/proc/meminfo",
        "MemTotal:       2097152 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n");
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/memory.current", "536870912\n");
  Write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  Write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA Test\nIRQ: 5\n");
  Write("/sys/module/nvidia/version", "580.1\n");
  const Machine machine = ExamineMachine(root_);
  EXPECT_EQ(machine.cpu_model, "Test CPU");
  EXPECT_TRUE(machine.avx512);
  EXPECT_TRUE(machine.cpu_has_bf16());
  EXPECT_FALSE(machine.avx512_bf16);
  EXPECT_EQ(machine.memory->total, kGiB) << "the cgroup's limit counts";
  EXPECT_EQ(machine.memory->available, kGiB / 2);
  EXPECT_DOUBLE_EQ(machine.cgroup_cores, 1.5);
  ASSERT_EQ(machine.gpus.size(), 1u);
  EXPECT_EQ(machine.gpus[0], "NVIDIA Test");
  EXPECT_EQ(machine.nvidia_driver, "580.1");
}

TEST_F(FakeRoot, GpusBehindDeviceFilesAloneAreSeen) {
  Write("/dev/nvidia0", "");
  Write("/dev/nvidia12", "");
  Write("/dev/nvidiactl", "");
  Write("/dev/nvidia-uvm", "");
  const Machine machine = ExamineMachine(root_);
  EXPECT_THAT(machine.gpus, testing::ElementsAre("/dev/nvidia0", "/dev/nvidia12"));
}

TEST(Doctor, JsonLinesAreOneMachineAndChecks) {
  std::ostringstream out;
  std::ostringstream err;
  Streams streams{out, err, {}, {}};
  ASSERT_TRUE(RunDoctor({.json = true}, streams).ok());
  std::istringstream lines(out.str());
  std::string line;
  int checks = 0;
  int machines = 0;
  while (std::getline(lines, line)) {
    const auto value = nlohmann::json::parse(line);
    machines += value["event"] == "machine" ? 1 : 0;
    checks += value["event"] == "check" ? 1 : 0;
  }
  EXPECT_EQ(machines, 1);
  EXPECT_GE(checks, 7);
  EXPECT_THAT(out.str(), HasSubstr(R"("event":"rdma")"));
}

TEST(Doctor, TheTableNamesEveryFeature) {
  std::ostringstream out;
  std::ostringstream err;
  Streams streams{out, err, {}, {}};
  ASSERT_TRUE(RunDoctor({}, streams).ok());
  for (const auto* feature : {"shm transport", "GPUs", "RDMA", "memory", "bf16"}) {
    EXPECT_THAT(out.str(), HasSubstr(feature));
  }
}

}  // namespace
}  // namespace shoal::cli
