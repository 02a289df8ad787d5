// The options of a job's transports, and the check on locked memory.
#include "core/transport/registry/job_transport.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/transport/locked_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(VerbsOptions, FlagsOverrideTheJobOnTheirMachine) {
  const plan::RdmaOptions job = {.devices = {"mlx5_0", "mlx5_1"},
                                 .gid_index = 3,
                                 .mtu_bytes = 2048,
                                 .max_rails = 2,
                                 .traffic_class = 104,
                                 .service_level = 3};
  const VerbsOptions by_job = MakeVerbsOptions(job, {});
  EXPECT_THAT(by_job.devices, ElementsAre("mlx5_0", "mlx5_1"));
  EXPECT_EQ(by_job.gid_index, 3);
  EXPECT_EQ(by_job.mtu_bytes, 2048);
  EXPECT_EQ(by_job.max_rails, 2);
  EXPECT_EQ(by_job.traffic_class, 104);
  EXPECT_EQ(by_job.service_level, 3);
  const VerbsOptions by_flags = MakeVerbsOptions(job, {.devices = {"rxe0"}, .gid_index = -1});
  EXPECT_THAT(by_flags.devices, ElementsAre("rxe0"));
  EXPECT_EQ(by_flags.gid_index, -1) << "the job's index can be taken back";
  EXPECT_EQ(by_flags.max_rails, 2);
}

TEST(VerbsOptions, AJobThatSaysNothingLeavesTheDefaults) {
  const VerbsOptions options = MakeVerbsOptions(plan::Job{}.service.rdma, {});
  const VerbsOptions defaults;
  EXPECT_EQ(options.devices, defaults.devices);
  EXPECT_EQ(options.gid_index, defaults.gid_index);
  EXPECT_EQ(options.mtu_bytes, defaults.mtu_bytes);
  EXPECT_EQ(options.max_rails, defaults.max_rails);
  EXPECT_EQ(options.traffic_class, defaults.traffic_class);
  EXPECT_EQ(options.service_level, defaults.service_level);
}

TEST(Encryption, KeepsVerbsOffANetworkThatIsNotTrusted) {
  plan::ServiceOptions service;
  const auto verbs = [&](bool control_is_encrypted) {
    return CreateJobTransport("verbs", service, {.devices = {"no_such_device"}},
                              {.encrypt = control_is_encrypted}, 0)
        .status();
  };
  const std::string refusal = "service.rdma.trusted_network: true";
  EXPECT_REFUSED(verbs(true), refusal);
  EXPECT_REFUSED(verbs(false), "no_such_device");
  service.rdma.trusted_network = true;
  EXPECT_REFUSED(verbs(true), "no_such_device");
  service.rdma.trusted_network = false;
  service.encryption = plan::Encryption::kOff;
  EXPECT_REFUSED(verbs(true), "no_such_device");
  service.encryption = plan::Encryption::kOn;
  EXPECT_REFUSED(CreateJobTransport("tcp", service, {}, {}, 0).status(), "control has no TLS");
  EXPECT_TRUE(CreateJobTransport("tcp", service, {}, {.encrypt = true}, 0).ok());
}

TEST(JobTransport, OthersThanVerbsDoNotMindLockedMemory) {
  const auto shm = CreateJobTransport("shm", {}, {}, {}, int64_t{1} << 50);
  ASSERT_TRUE(shm.ok()) << Describe(shm.status());
  EXPECT_EQ((*shm)->name(), "shm");
}

TEST(JobTransport, AMachineWithoutRdmaIsNoReasonToWarn) {
  const auto verbs = CreateJobTransport("verbs", {}, {}, {}, 0);
  if (verbs.ok()) {
    GTEST_SKIP() << "this machine has an RDMA device";
  }
  EXPECT_TRUE(absl::IsNotFound(verbs.status())) << Describe(verbs.status());
  const auto logged = [](const absl::Status& why) {
    testing::internal::CaptureStdout();  // programs that did not set up logging log here
    LogUnavailable("verbs", why);
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(logged(verbs.status()),
              AllOf(HasSubstr("info"), HasSubstr("verbs is not available here: no RDMA device")));
  EXPECT_THAT(logged(Unavailable("port 1 is down")),
              AllOf(HasSubstr("warning"), HasSubstr("port 1 is down")));
}

TEST(JobTransport, ADeviceThatWasNamedAndIsNotThereIsNamed) {
  const auto verbs = CreateJobTransport("verbs", {}, {.devices = {"no_such_device"}}, {}, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(verbs.status()));
  EXPECT_THAT(std::string(Message(verbs.status())), HasSubstr("no_such_device"));
}

TEST(LockedMemory, IsEnoughWhereNothingLimitsIt) {
  EXPECT_TRUE(CheckLockedMemory({.limit_bytes = -1}, kGiB).ok());
  EXPECT_TRUE(CheckLockedMemory({.limit_bytes = kGiB}, kGiB).ok());
  EXPECT_TRUE(CheckLockedMemory({.limit_bytes = 0, .capable = true}, kGiB).ok());
  const absl::Status status =
      CheckLockedMemory({.limit_bytes = 8 * kMiB, .capability_in_reach = true}, kGiB);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("8.0 MiB"));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("1.0 GiB"));
}

class Proc : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/locked_memory_" + std::to_string(getpid());
    std::filesystem::create_directories(root_ + "/proc/self");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  LockedMemory Read(const std::string& status, const std::string& uid_map) {
    std::ofstream(root_ + "/proc/self/status") << status;
    std::ofstream(root_ + "/proc/self/uid_map") << uid_map;
    return ReadLockedMemory(root_);
  }
  std::string root_;
};

constexpr char kWhole[] = "         0          0 4294967295\n";

TEST_F(Proc, ACapabilityCountsWhereItIsInEffect) {
  const LockedMemory root = Read(
      "Name:\tx\nCapPrm:\t0000000000004000\nCapEff:\t0000000000004000\nCapBnd:\t00000000a80465fb\n",
      kWhole);
  EXPECT_TRUE(root.capable);
  EXPECT_TRUE(root.capability_in_reach);
}

TEST_F(Proc, ACapabilityGivenToAnotherUserThanRootIsInReachAlone) {
  const LockedMemory user = Read("CapEff:\t0000000000000000\nCapBnd:\t00000000a80465fb\n", kWhole);
  EXPECT_FALSE(user.capable);
  EXPECT_TRUE(user.capability_in_reach);
}

TEST_F(Proc, ACapabilityOfAUserNamespaceDoesNotCount) {
  const LockedMemory nested =
      Read("CapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n", "0 100000 65536\n");
  EXPECT_FALSE(nested.capable);
  EXPECT_FALSE(nested.capability_in_reach);
}

TEST_F(Proc, NothingReadableMeansNoCapability) {
  const LockedMemory nothing = ReadLockedMemory(root_ + "/elsewhere");
  EXPECT_FALSE(nothing.capable);
  EXPECT_FALSE(nothing.capability_in_reach);
}

}  // namespace
}  // namespace shoal::transport
