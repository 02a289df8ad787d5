// What the doctor says of RDMA, over machines made up here.
#include "cli/doctor/rdma_findings.h"

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

// One RoCE card at 200 Gbit/s with all there is, and a GPU.
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

Finding Find(const RdmaSurvey& survey, const std::string& feature, const RdmaNeeds& needs = {}) {
  for (const Finding& finding : JudgeRdma(survey, needs)) {
    if (finding.feature == feature) {
      return finding;
    }
  }
  ADD_FAILURE() << "no finding " << feature;
  return {};
}

TEST(RdmaFindings, AGoodMachineHasAllAndShowsWhatWouldBeTaken) {
  const auto findings = JudgeRdma(GoodRdmaMachine(), {});
  EXPECT_THAT(findings, SizeIs(8));
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.health, Health::kOk) << finding.feature << ": " << finding.advice;
    EXPECT_FALSE(finding.required) << "tcp is always there";
    EXPECT_THAT(finding.detail, Not(IsEmpty())) << finding.feature;
  }
  EXPECT_THAT(Find(GoodRdmaMachine(), "RDMA address").detail,
              AllOf(HasSubstr("mlx5_0 port 1"), HasSubstr("10.0.0.7 (index 3)"),
                    HasSubstr("NUMA node 0"), HasSubstr("200 Gbit/s")));
}

TEST(RdmaFindings, WithoutADeviceThereIsOneLine) {
  RdmaSurvey survey;
  survey.locked = {.limit_bytes = 65536};
  auto findings = JudgeRdma(survey, {});
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].health, Health::kMissing);
  EXPECT_THAT(findings[0].advice, HasSubstr("tcp"));
  survey.kernel_devices = {"mlx5_0"};
  findings = JudgeRdma(survey, {});
  EXPECT_THAT(findings[0].advice, HasSubstr("ib_uverbs"));
  survey.device_files = true;
  findings = JudgeRdma(survey, {});
  EXPECT_THAT(findings[0].advice, HasSubstr("ibverbs-providers"));
}

TEST(RdmaFindings, WhatIsNotTakenIsSaidWithWhy) {
  RdmaSurvey survey = GoodRdmaMachine();
  PortOf(survey).active = false;
  Finding finding = Find(survey, "RDMA address");
  EXPECT_EQ(finding.health, Health::kMissing);
  EXPECT_THAT(finding.advice, HasSubstr("link is down"));
  EXPECT_THAT(Find(survey, "RDMA").detail, HasSubstr("port 1 Ethernet down"));

  survey = GoodRdmaMachine();
  PortOf(survey).gids.resize(1);
  finding = Find(survey, "RDMA address");
  EXPECT_EQ(finding.health, Health::kMissing);
  EXPECT_THAT(finding.advice, HasSubstr("link-local"));

  survey = GoodRdmaMachine();
  survey.census.devices.push_back(
      {.name = "mlx5_1",
       .problem = "it may not be opened; give this user /dev/infiniband/uverbs*"});
  EXPECT_EQ(Find(survey, "RDMA").health, Health::kLimited);
  EXPECT_THAT(Find(survey, "RDMA").advice, HasSubstr("mlx5_1: it may not be opened"));
}

TEST(RdmaFindings, AnAddressOfAnotherContainerIsSaid) {
  RdmaSurvey survey = GoodRdmaMachine();
  survey.interface_mtus["eth0"] = 0;  // no such interface here
  const Finding finding = Find(survey, "RDMA address");
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.advice, AllOf(HasSubstr("eth0"), HasSubstr("not in this network namespace")));
}

TEST(RdmaFindings, WhatWasAskedForAndIsNotThereIsSaid) {
  const Finding finding =
      Find(GoodRdmaMachine(), "RDMA address", {.preferences = {.devices = {"mlx5_9"}}});
  EXPECT_EQ(finding.health, Health::kMissing);
  EXPECT_THAT(finding.advice, AllOf(HasSubstr("mlx5_9"), HasSubstr("mlx5_0")));
  EXPECT_THAT(Find(GoodRdmaMachine(), "RDMA address", {.preferences = {.gid_index = 3}}).detail,
              HasSubstr("index as given"));
}

TEST(RdmaFindings, LockedMemoryIsHeldAgainstWhatIsRegistered) {
  RdmaSurvey survey = GoodRdmaMachine();
  survey.locked = {.limit_bytes = 8 * kMiB};
  const std::string feature = "locked memory (for RDMA)";
  Finding finding = Find(survey, feature);
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.detail, AllOf(HasSubstr("8.0 MiB"), HasSubstr("a small run registers")));
  EXPECT_THAT(finding.advice,
              AllOf(HasSubstr("ulimit -l unlimited"), HasSubstr("give the container")));
  EXPECT_EQ(Find(survey, feature, {.registered_bytes = kMiB, .of_a_job = true}).health,
            Health::kOk);
  survey.locked.capability_in_reach = true;
  EXPECT_THAT(Find(survey, feature).advice, HasSubstr("in effect for root alone"));
  survey.locked.capable = true;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  EXPECT_THAT(Find(survey, feature).detail, HasSubstr("IPC_LOCK is in effect"));
}

TEST(RdmaFindings, ASmallMtuNamesTheInterfaceToRaise) {
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

TEST(RdmaFindings, MissingWindowsAreSaid) {
  RdmaSurvey survey = GoodRdmaMachine();
  survey.census.devices[0].windows = false;
  const Finding finding = Find(survey, "RDMA memory windows");
  EXPECT_EQ(finding.health, Health::kLimited);
  EXPECT_THAT(finding.detail, HasSubstr("none on mlx5_0"));
}

TEST(RdmaFindings, GpuMemoryNeedsDmaBufOrPeerMemory) {
  RdmaSurvey survey = GoodRdmaMachine();
  const std::string feature = "GPU memory over RDMA";
  survey.census.dma_buf["mlx5_0"] = DmaBufSupport::kNo;
  EXPECT_EQ(Find(survey, feature).health, Health::kLimited);
  EXPECT_THAT(Find(survey, feature).advice,
              AllOf(HasSubstr("nvidia-peermem"), HasSubstr("Linux 6.1.0")));
  survey.peer_memory = true;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  survey.gpus = false;
  for (const Finding& finding : JudgeRdma(survey, {})) {
    EXPECT_NE(finding.feature, feature);
  }
}

TEST(RdmaFindings, OnlySoftRoceGoesThroughThePacketFilter) {
  const std::string feature = "RoCE through firewalls (UDP 4791)";
  RdmaSurvey survey = GoodRdmaMachine();
  survey.packet_filter = true;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  survey.census.devices[0].pci_path = "";
  EXPECT_EQ(Find(survey, feature).health, Health::kLimited);
  EXPECT_THAT(Find(survey, feature).advice, HasSubstr("nft list ruleset"));
  survey.packet_filter = false;
  EXPECT_EQ(Find(survey, feature).health, Health::kOk);
  for (const Finding& finding : JudgeRdma(survey, {})) {
    EXPECT_THAT(finding.feature, Not(HasSubstr("lossless")))
        << "software loses nothing to switches";
  }
}

TEST(RdmaFindings, LostPacketsPointToPfcAndEcn) {
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

TEST(RdmaFindings, InfinibandHasNoEthernetFindings) {
  RdmaSurvey survey = GoodRdmaMachine();
  PortOf(survey).link_layer = LinkLayer::kInfiniBand;
  PortOf(survey).lid = 7;
  PortOf(survey).gids = {{.index = 0, .gid = LinkLocal(), .type = GidType::kInfiniBand}};
  for (const Finding& finding : JudgeRdma(survey, {})) {
    EXPECT_EQ(finding.health, Health::kOk) << finding.feature << ": " << finding.advice;
    EXPECT_THAT(finding.feature, AllOf(Not(HasSubstr("RoCE")), Not(HasSubstr("Ethernet"))));
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
