// The doctor's checks of RDMA, on made-up machines.
#include "cli/doctor/rdma_checks.h"

#include <unistd.h>

#include <filesystem>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using transport::DmaBufSupport;
using transport::Gid;
using transport::GidType;
using transport::LinkLayer;

Gid Ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}
Gid LinkLocal() { return {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}; }

// One RoCE card at 200 Gbit/s with every feature, and a GPU.
RdmaSurvey GoodRdmaMachine() {
  RdmaSurvey survey;
  survey.kernel_devices = {"mlx5_0"};
  survey.device_files = true;
  transport::PortDescription port = {.port = 1,
                                     .active = true,
                                     .link_layer = LinkLayer::kEthernet,
                                     .mtu_bytes = 4096,
                                     .bits_per_second = 200'000'000'000,
                                     .max_message_bytes = kGiB};
  port.gids = {{.index = 0, .gid = LinkLocal(), .type = GidType::kRoceV2},
               {.index = 3, .gid = Ipv4(10, 0, 0, 7), .type = GidType::kRoceV2}};
  survey.census.devices = {{.name = "mlx5_0",
                            .numa_node = 0,
                            .pci_path = "/0000:00:01.0/0000:01:00.0",
                            .ports = {port},
                            .windows = true}};
  survey.census.dma_buf = {{"mlx5_0", DmaBufSupport::kYes}};
  survey.ports["mlx5_0:1"] = {.interfaces = {{0, "eth0"}, {3, "eth0"}},
                              .counters = {{"packet_seq_err", 0}, {"np_cnp_sent", 5}}};
  survey.interface_mtus = {{"eth0", 9000}};
  survey.gpus = true;
  survey.kernel = "Linux 6.1.0";
  return survey;
}

transport::PortDescription& PortOf(RdmaSurvey& survey) { return survey.census.devices[0].ports[0]; }

Check Find(const RdmaSurvey& survey, const std::string& feature, const RdmaNeeds& needs = {}) {
  for (const Check& check : JudgeRdma(survey, needs)) {
    if (check.feature == feature) {
      return check;
    }
  }
  ADD_FAILURE() << "no check " << feature;
  return {};
}

TEST(RdmaChecks, AGoodMachineHasAllAndShowsWhatWouldBeTaken) {
  const auto checks = JudgeRdma(GoodRdmaMachine(), {});
  EXPECT_THAT(checks, SizeIs(8));
  for (const Check& check : checks) {
    EXPECT_EQ(check.health, Health::kOk) << check.feature << ": " << check.advice;
    EXPECT_FALSE(check.required) << "tcp is always there";
    EXPECT_THAT(check.detail, Not(IsEmpty())) << check.feature;
  }
  EXPECT_THAT(Find(GoodRdmaMachine(), "RDMA address").detail,
              AllOf(HasSubstr("mlx5_0 port 1"), HasSubstr("10.0.0.7 (index 3)"),
                    HasSubstr("NUMA node 0"), HasSubstr("200 Gbit/s")));
}

TEST(RdmaChecks, WithoutADeviceThereIsOneLine) {
  RdmaSurvey survey;
  survey.locked = {.limit_bytes = 65536};
  auto checks = JudgeRdma(survey, {});
  ASSERT_THAT(checks, SizeIs(1));
  EXPECT_EQ(checks[0].health, Health::kMissing);
  EXPECT_THAT(checks[0].advice, HasSubstr("tcp"));
  survey.kernel_devices = {"mlx5_0"};
  checks = JudgeRdma(survey, {});
  EXPECT_THAT(checks[0].advice, HasSubstr("ib_uverbs"));
  survey.device_files = true;
  checks = JudgeRdma(survey, {});
  EXPECT_THAT(checks[0].advice, HasSubstr("ibverbs-providers"));
}

TEST(RdmaChecks, WhatIsNotTakenIsSaidWithWhy) {
  RdmaSurvey survey = GoodRdmaMachine();
  PortOf(survey).active = false;
  Check check = Find(survey, "RDMA address");
  EXPECT_EQ(check.health, Health::kMissing);
  EXPECT_THAT(check.advice, HasSubstr("link is down"));
  EXPECT_THAT(Find(survey, "RDMA").detail, HasSubstr("port 1 Ethernet down"));

  survey = GoodRdmaMachine();
  PortOf(survey).gids.resize(1);
  check = Find(survey, "RDMA address");
  EXPECT_EQ(check.health, Health::kMissing);
  EXPECT_THAT(check.advice, HasSubstr("link-local"));

  survey = GoodRdmaMachine();
  survey.census.devices.push_back(
      {.name = "mlx5_1",
       .problem = "it may not be opened; give this user /dev/infiniband/uverbs*"});
  EXPECT_EQ(Find(survey, "RDMA").health, Health::kLimited);
  EXPECT_THAT(Find(survey, "RDMA").advice, HasSubstr("mlx5_1: it may not be opened"));
}

TEST(RdmaChecks, AnAddressOfAnotherContainerIsSaid) {
  RdmaSurvey survey = GoodRdmaMachine();
  survey.interface_mtus["eth0"] = 0;  // no such interface
  const Check check = Find(survey, "RDMA address");
  EXPECT_EQ(check.health, Health::kLimited);
  EXPECT_THAT(check.advice, AllOf(HasSubstr("eth0"), HasSubstr("not in this network namespace")));
}

TEST(RdmaChecks, WhatWasAskedForAndIsNotThereIsSaid) {
  const Check check =
      Find(GoodRdmaMachine(), "RDMA address", {.preferences = {.devices = {"mlx5_9"}}});
  EXPECT_EQ(check.health, Health::kMissing);
  EXPECT_THAT(check.advice, AllOf(HasSubstr("mlx5_9"), HasSubstr("mlx5_0")));
  EXPECT_THAT(Find(GoodRdmaMachine(), "RDMA address", {.preferences = {.gid_index = 3}}).detail,
              HasSubstr("index as given"));
}

TEST(RdmaChecks, LockedMemoryIsHeldAgainstWhatIsRegistered) {
  RdmaSurvey survey = GoodRdmaMachine();
  survey.locked = {.limit_bytes = 8 * kMiB};
  const std::string feature = "locked memory (for RDMA)";
  Check check = Find(survey, feature);
  EXPECT_EQ(check.health, Health::kLimited);
  EXPECT_THAT(check.detail, AllOf(HasSubstr("8.0 MiB"), HasSubstr("a small run registers")));
  EXPECT_THAT(check.advice,
              AllOf(HasSubstr("ulimit -l unlimited"), HasSubstr("give the container")));
  EXPECT_EQ(Find(survey, feature, {.registered_bytes = kMiB, .of_a_job = true}).health,
            Health::kOk);
  survey.locked.capability_in_reach = true;
  EXPECT_THAT(Find(survey, feature).advice, HasSubstr("in effect for root alone"));
  survey.locked.capable = true;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  EXPECT_THAT(Find(survey, feature).detail, HasSubstr("IPC_LOCK is in effect"));
}

TEST(RdmaChecks, ASmallMtuNamesTheInterfaceToRaise) {
  RdmaSurvey survey = GoodRdmaMachine();
  PortOf(survey).mtu_bytes = 1024;
  EXPECT_THAT(Find(survey, "RDMA MTU").advice, HasSubstr("raise its interface's MTU"));
  survey.interface_mtus["eth0"] = 1500;
  EXPECT_EQ(Find(survey, "RDMA MTU").health, Health::kLimited);
  EXPECT_THAT(Find(survey, "RDMA MTU").advice, HasSubstr("ip link set eth0 mtu 9000"));
  PortOf(survey).link_layer = LinkLayer::kInfiniBand;
  PortOf(survey).lid = 7;
  EXPECT_THAT(Find(survey, "RDMA MTU").advice, HasSubstr("subnet manager"));
}

TEST(RdmaChecks, MissingWindowsAreSaid) {
  RdmaSurvey survey = GoodRdmaMachine();
  survey.census.devices[0].windows = false;
  const Check check = Find(survey, "RDMA memory windows");
  EXPECT_EQ(check.health, Health::kLimited);
  EXPECT_THAT(check.detail, HasSubstr("none on mlx5_0"));
}

TEST(RdmaChecks, GpuMemoryNeedsDmaBufOrPeerMemory) {
  RdmaSurvey survey = GoodRdmaMachine();
  const std::string feature = "GPU memory over RDMA";
  survey.census.dma_buf["mlx5_0"] = DmaBufSupport::kNo;
  EXPECT_EQ(Find(survey, feature).health, Health::kLimited);
  EXPECT_THAT(Find(survey, feature).advice,
              AllOf(HasSubstr("nvidia-peermem"), HasSubstr("Linux 6.1.0")));
  survey.peer_memory = true;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  survey.gpus = false;
  for (const Check& check : JudgeRdma(survey, {})) {
    EXPECT_NE(check.feature, feature);
  }
}

TEST(RdmaChecks, OnlySoftRoceGoesThroughThePacketFilter) {
  const std::string feature = "RoCE through firewalls (UDP 4791)";
  RdmaSurvey survey = GoodRdmaMachine();
  survey.packet_filter = true;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  survey.census.devices[0].pci_path = "";
  EXPECT_EQ(Find(survey, feature).health, Health::kLimited);
  EXPECT_THAT(Find(survey, feature).advice, HasSubstr("nft list ruleset"));
  survey.packet_filter = false;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  for (const Check& check : JudgeRdma(survey, {})) {
    EXPECT_THAT(check.feature, Not(HasSubstr("lossless"))) << "software loses nothing to switches";
  }
}

TEST(RdmaChecks, LostPacketsPointToPfcAndEcn) {
  const std::string feature = "lossless Ethernet (PFC, ECN)";
  RdmaSurvey survey = GoodRdmaMachine();
  auto& counters = survey.ports["mlx5_0:1"].counters;
  counters["packet_seq_err"] = 7;
  EXPECT_EQ(Find(survey, feature).health, Health::kLimited);
  EXPECT_THAT(Find(survey, feature).advice, HasSubstr("set up ECN or PFC"));
  counters["rp_cnp_handled"] = 9;
  EXPECT_THAT(Find(survey, feature).advice, HasSubstr("in spite of ECN"));
  EXPECT_THAT(Find(survey, feature).detail, AllOf(HasSubstr("7 packets"), HasSubstr("9 congest")));
  counters.clear();
  EXPECT_THAT(Find(survey, feature).advice, HasSubstr("dcb pfc show"));
}

TEST(RdmaChecks, InfinibandHasNoEthernetChecks) {
  RdmaSurvey survey = GoodRdmaMachine();
  PortOf(survey).link_layer = LinkLayer::kInfiniBand;
  PortOf(survey).lid = 7;
  PortOf(survey).gids = {{.index = 0, .gid = LinkLocal(), .type = GidType::kInfiniBand}};
  for (const Check& check : JudgeRdma(survey, {})) {
    EXPECT_EQ(check.health, Health::kOk) << check.feature << ": " << check.advice;
    EXPECT_THAT(check.feature, AllOf(Not(HasSubstr("RoCE")), Not(HasSubstr("Ethernet"))));
  }
}

TEST(RdmaSurveyTest, ReadsWhatTheKernelSays) {
  const std::string root = testing::TempDir() + "/rdma_root_" + std::to_string(getpid());
  const auto write = [&](const std::string& path, const std::string& text) {
    const auto parent = std::filesystem::path(root + path).parent_path().string();
    ASSERT_TRUE(CreateDirectories(parent).ok());
    ASSERT_TRUE(WriteFileAtomically(root + path, text).ok());
  };
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
  write(port + "/gid_attrs/ndevs/3", "eth0\n");
  write(port + "/hw_counters/packet_seq_err", "42\n");
  write("/sys/class/net/eth0/mtu", "1500\n");
  write("/sys/module/nvidia_peermem/refcnt", "0\n");
  write("/sys/module/nf_tables/refcnt", "1\n");
  write("/dev/infiniband/uverbs0", "");
  write("/proc/self/uid_map", "0 0 4294967295\n");
  write("/proc/self/status", "CapEff:\t0000000000004000\nCapBnd:\t0000000000004000\n");
  const RdmaSurvey survey = ExamineRdma(root, GoodRdmaMachine().census);
  std::filesystem::remove_all(root);
  EXPECT_THAT(survey.kernel_devices, testing::ElementsAre("mlx5_0"));
  EXPECT_TRUE(survey.device_files);
  const RdmaPort& facts = survey.ports.at("mlx5_0:1");
  EXPECT_EQ(facts.interfaces.at(3), "eth0");
  EXPECT_EQ(facts.interfaces.count(0), 0u) << "no such file";
  EXPECT_EQ(facts.counters.at("packet_seq_err"), 42);
  EXPECT_EQ(survey.interface_mtus.at("eth0"), 1500);
  EXPECT_TRUE(survey.peer_memory);
  EXPECT_TRUE(survey.packet_filter);
  EXPECT_TRUE(survey.locked.capable);
  const RdmaSurvey nothing = ExamineRdma(root + "/none", {});
  EXPECT_FALSE(nothing.peer_memory || nothing.packet_filter || nothing.device_files);
}

}  // namespace
}  // namespace shoal::cli
