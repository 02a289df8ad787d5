#include <gtest/gtest.h>

#include <filesystem>

#include "absl/time/clock.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/transport/bench/compare.h"
#include "core/transport/bench/message_peers.h"
#include "core/transport/bench/perftest.h"
#include "core/transport/bench/program_pair.h"
#include "core/transport/bench/run_program.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace shoal::transport {
namespace {

using ::testing::HasSubstr;

TEST(RunProgramTest, GivesWhatWasPrintedAndSaysHowItFailed) {
  const auto output =
      RunProgram({"sh", "-c", "echo $WHAT"}, absl::Seconds(10), {{"WHAT", "hello"}});
  ASSERT_TRUE(output.ok()) << Describe(output.status());
  EXPECT_EQ(*output, "hello\n");
  const absl::Status failed =
      RunProgram({"sh", "-c", "echo out; echo why >&2; exit 3"}, absl::Seconds(10)).status();
  EXPECT_THAT(Message(failed), testing::AllOf(HasSubstr("status 3"), HasSubstr("why")));
  EXPECT_TRUE(absl::IsNotFound(RunProgram({"no-such-program-here"}, absl::Seconds(10)).status()));
  EXPECT_TRUE(ProgramExists("sh"));
  EXPECT_FALSE(ProgramExists("no-such-program-here"));
}

TEST(RunProgramTest, WhatTakesTooLongIsKilledWithItsChildren) {
  const std::string mark = testing::TempDir() + "run-program-" + SecureToken();
  const absl::Status late =
      RunProgram({"sh", "-c", "(sleep 1; touch " + mark + ") & sleep 60"}, absl::Milliseconds(100))
          .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << Describe(late);
  absl::SleepFor(absl::Milliseconds(1200));
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST(ProgramPairTest, TheClientTriesUntilTheServerIsThere) {
  // Server and client know each other by the port's number; the server takes a while to be there.
  const std::string mark = testing::TempDir() + "pair-" + SecureToken();
  const std::string script = "if [ $# = 2 ]; then sleep 0.2; touch " + mark + "-$2; sleep 5; rm " +
                             mark + "-$2; else [ -e " + mark + "-$2 ] && echo $3; fi";
  const auto output = RunProgramPair({"sh", "-c", script, "sh"}, "there");
  ASSERT_TRUE(output.ok()) << Describe(output.status());
  EXPECT_EQ(*output, "there\n");
  const absl::Status failed = RunProgramPair({"sh", "-c", "echo no device; exit 1"}, "x").status();
  EXPECT_THAT(Message(failed), HasSubstr("no device"));
}

TEST(PerftestTest, ReadsItsTables) {
  const std::string bandwidth =
      " GID: 00:00:00:00\n"
      "---------------\n"
      " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"
      " 1048576    1000             181.50             180.25               0.000180\n"
      "---------------\n";
  EXPECT_NEAR(*ParsePerftestBandwidth(bandwidth), 180.25 * (1 << 20), 1);
  const std::string small =
      " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"
      " 64         1000             1.31               1.25               0.020480\n";
  EXPECT_NEAR(*ParsePerftestBandwidth(small), 64 * 20480, 1);
  const std::string latency =
      " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
      "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n"
      " 64      1000          20.10\t         120.00       23.40            24.00            5.00  "
      " "
      "  "
      "       40.00                   90.00\n";
  EXPECT_NEAR(*ParsePerftestLatency(latency), 23.4e-6, 1e-12);
  EXPECT_FALSE(ParsePerftestLatency("Couldn't connect").ok());
}

TEST(MessagePeersTest, TakeTheBestOfEachKind) {
  const auto figures = ParsePeerJson(
      "a warning\n{\"get_latency_seconds\": 3e-5, \"tag_latency_seconds\": 2e-5, "
      "\"get_bytes_per_second_1_in_flight\": 1e9, \"tag_bytes_per_second_4_in_flight\": 3e9}\n");
  ASSERT_TRUE(figures.ok()) << Describe(figures.status());
  EXPECT_EQ(figures->latency_seconds, 2e-5);
  EXPECT_EQ(figures->bytes_per_second, 3e9);
  EXPECT_FALSE(ParsePeerJson("{}").ok());
  EXPECT_FALSE(ParsePeerJson("no figures").ok());
}

TEST(PeersTest, WhatIsMissingIsNamedWithWhatToInstall) {
  EXPECT_THAT(Message(MakePeer("pigeon", {}).status()), HasSubstr("perftest, ucx, openmpi"));
  const PeerOptions nowhere = {.program_folder = "/nowhere"};
  EXPECT_THAT(Message(MakePeer("ucx", nowhere).status()), HasSubstr("libucx-dev"));
}

// A peer that is half as fast as ours was just before.
class SlowPeer final : public Peer {
 public:
  std::string_view name() const override { return "slow"; }
  bool Covers(std::string_view transport) const override { return transport == "shm"; }
  bool Covers(BenchOperation operation) const override { return operation == BenchOperation::kGet; }
  absl::StatusOr<PeerFigures> Measure(const PeerLoad& load) override {
    EXPECT_GE(load.memory_bytes, load.bytes);
    return PeerFigures{.bytes_per_second = load.expected_bytes_per_second / 2,
                       .latency_seconds = 1000};
  }
};

TEST(CompareTest, RatiosAreOursToTheirs) {
  std::vector<std::unique_ptr<Peer>> peers;
  peers.push_back(std::make_unique<SlowPeer>());
  CompareOptions options;
  options.sizes = {1000, 100000};
  options.runs = 3;
  options.run_time = absl::Milliseconds(2);
  options.memory_bytes = 8 << 20;
  int told = 0;
  const auto report = Compare(options, peers, [&](const ComparedPoint&) { ++told; });
  ASSERT_TRUE(report.ok()) << Describe(report.status());
  ASSERT_EQ(report->points.size(), 2u);
  EXPECT_EQ(told, 2);
  for (const ComparedPoint& point : report->points) {
    EXPECT_EQ(point.transport, "shm");
    EXPECT_EQ(point.operation, "get");
    EXPECT_NEAR(point.bandwidth_ratio, 2, 1e-9);
    EXPECT_LT(point.latency_ratio, 1);
    EXPECT_THAT(FormatComparisonRow(point), HasSubstr("2.00"));
    EXPECT_EQ(nlohmann::json::parse(FormatComparisonJson(point))["peer"], "slow");
  }
  options.transports = {"tcp"};
  EXPECT_TRUE(absl::IsInvalidArgument(Compare(options, peers).status()));
}

}  // namespace
}  // namespace shoal::transport
