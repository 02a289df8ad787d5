// Servers that write checkpoints while training goes on, and restore from them at other numbers.
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/service/testing/freezes.h"

namespace shoal::server {
namespace {

using testing::HasSubstr;

class CheckpointServiceTest : public FreezesTest {
 protected:
  CheckpointServiceTest() : folder_(testing::TempDir() + "checkpoint-service-" + SecureToken()) {}
  ~CheckpointServiceTest() override { std::filesystem::remove_all(folder_); }
  std::string model() const { return folder_ + "/model"; }
  std::string checkpoints() const { return folder_ + "/checkpoints"; }

  // Runs one step in which a worker pushes one gradient of every partition to each server.
  static void Step(TestingCluster& cluster, int64_t step) {
    ASSERT_OK(cluster.BeginAttempt(step, 1));
    for (int server = 0; server < cluster.servers(); ++server) {
      TestingClient client(&cluster.service(server), &cluster.client_transport(), 1, 1);
      ASSERT_OK(client.Connect());
      for (const int partition : plan::PartitionsOf(cluster.shard_map(), server)) {
        if (cluster.partitions()[static_cast<size_t>(partition)].frozen) {
          continue;
        }
        const auto answer =
            client.SendAndWait({.partition = partition,
                                .step = step,
                                .gradient = cluster.Gradient(1, step, 1, partition)});
        ASSERT_TRUE(answer.has_value() && answer->code == absl::StatusCode::kOk);
      }
    }
    ASSERT_OK(cluster.Prepare(step, 1).status());
    ASSERT_OK(cluster.Commit(step, 1));
  }

  static proto::WriteCheckpointRequest Request(int64_t version, const std::string& folder,
                                               bool begin, int server = 0) {
    auto request = OfTestingJob<proto::WriteCheckpointRequest>();
    request.set_version(version);
    request.set_directory(folder);
    request.set_begin(begin);
    request.set_server(server);
    return request;
  }

  std::string Begin(TestingCluster& cluster, int64_t version) {
    writing_ = CheckpointDirectory::Take(checkpoints()).value();
    const auto folder = writing_->Begin(version);
    EXPECT_TRUE(folder.ok());
    for (int server = 0; server < cluster.servers(); ++server) {
      EXPECT_TRUE(
          cluster.service(server).WriteCheckpoint(Request(version, *folder, true, server)).ok());
    }
    return *folder;
  }

  absl::StatusOr<std::string> Finish(TestingCluster& cluster, int64_t version,
                                     const std::string& folder) {
    Manifest manifest = {.step = version, .spec = cluster.spec()};
    for (int server = 0; server < cluster.servers(); ++server) {
      SHOAL_ASSIGN_OR_RETURN(
          const proto::WriteCheckpointReply reply,
          cluster.service(server).WriteCheckpoint(Request(version, folder, false, server)));
      for (const proto::CheckpointShard& shard : reply.shards()) {
        manifest.shards.push_back(
            {.file = shard.file(),
             .bytes = shard.bytes(),
             .hash = shard.hash(),
             .partitions = {shard.partitions().begin(), shard.partitions().end()}});
      }
    }
    return writing_->Complete(manifest, plan::ToYaml(cluster.job()));
  }

  static int64_t ElementsOf(const TestingCluster& cluster) {
    int64_t elements = 0;
    for (const plan::PartitionSpec& partition : cluster.partitions()) {
      elements += partition.count;
    }
    return elements;
  }
  // Of shards.
  static double BytesIn(const std::string& folder) {
    uintmax_t bytes = 0;
    for (const char* shard : {"/server-0000.shard", "/server-0001.shard"}) {
      bytes += std::filesystem::file_size(folder + shard);
    }
    return static_cast<double>(bytes);
  }

  // Returns all state in a checkpoint, unit by unit.
  static std::vector<float> State(const std::string& folder) {
    const auto checkpoint = Checkpoint::Open(folder);
    EXPECT_TRUE(checkpoint.ok()) << Describe(checkpoint.status());
    std::vector<float> state;
    for (const plan::UnitSpec& unit : plan::BuildUnits((*checkpoint)->manifest().spec)) {
      for (const Section section :
           {Section::kMaster, Section::kFirstMoment, Section::kSecondMoment}) {
        const size_t before = state.size();
        state.resize(before + static_cast<size_t>(unit.count));
        EXPECT_TRUE(
            (*checkpoint)->Read(section, unit.index, 0, std::span(state).subspan(before)).ok());
      }
    }
    return state;
  }

  const std::string folder_;
  std::optional<CheckpointDirectory> writing_;
};

INSTANTIATE_TEST_SUITE_P(All, CheckpointServiceTest, testing::Bool(), FreezesTest::NameOf);

// Where something is frozen its weights are read again and again.
TEST_P(CheckpointServiceTest, KeepsWhatItWasLoadedFromOpenWhereSomethingIsFrozen) {
  const auto is_open = [](const std::string& folder) {
    const auto descriptors = std::filesystem::directory_iterator("/proc/self/fd");
    return std::ranges::any_of(descriptors, [&folder](const auto& descriptor) {
      std::error_code error;
      return std::filesystem::read_symlink(descriptor, error).string().starts_with(folder);
    });
  };
  std::string saved;
  {
    TestingCluster cluster(model(), 1, plan::Accumulate::kExact);
    ASSERT_OK(cluster.Configure());
    EXPECT_EQ(is_open(model()), GetParam());
    saved = Finish(cluster, 0, Begin(cluster, 0)).value();
  }
  TestingCluster resumed(model(), 1, plan::Accumulate::kExact);
  ASSERT_OK(resumed.Configure(saved));
  EXPECT_EQ(is_open(saved), GetParam());
}

// A checkpoint of step 2 holds step 2 although steps 3 and 4 commit while it is written. Resumed on
// another number of servers, with units cut elsewhere, training ends as if uninterrupted, bit for
// bit.
TEST_P(CheckpointServiceTest, ResumesBitForBitOnAnyNumberOfServers) {
  std::vector<float> at_two, at_four;
  {
    TestingCluster cluster(model(), 2, plan::Accumulate::kExact);
    ASSERT_OK(cluster.Configure());
    Step(cluster, 1);
    Step(cluster, 2);
    const std::string folder = Begin(cluster, 2);
    Step(cluster, 3);
    Step(cluster, 4);
    const std::string two = Finish(cluster, 2, folder).value();
    EXPECT_TRUE(VerifyCheckpoint(two).empty());
    EXPECT_EQ(State(two).size(), 3 * ElementsOf(cluster));
    EXPECT_NEAR(BytesIn(two), 8 * cluster.trained_elements() + 4 * ElementsOf(cluster), 1e4);
    at_two = State(two);
    at_four = State(Finish(cluster, 4, Begin(cluster, 4)).value());
  }
  for (const auto& [servers, partition_bytes] :
       {std::pair{1, 1 << 14}, {3, 1 << 14}, {2, 1 << 13}, {3, 1 << 20}}) {
    std::filesystem::remove_all(CheckpointPath(checkpoints(), 4));
    TestingCluster cluster(model(), servers, plan::Accumulate::kExact, partition_bytes);
    ASSERT_OK(cluster.Configure(CheckpointPath(checkpoints(), 2)));
    Step(cluster, 3);
    Step(cluster, 4);
    const std::vector<float> state = State(Finish(cluster, 4, Begin(cluster, 4)).value());
    ASSERT_EQ(state.size(), at_four.size());
    EXPECT_EQ(std::memcmp(state.data(), at_four.data(), state.size() * sizeof(float)), 0);
  }
  EXPECT_NE(at_two, at_four);
}

TEST_P(CheckpointServiceTest, PublishesTheCheckpointsVersion) {
  TestingCluster cluster(model(), 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  Step(cluster, 1);
  const std::string folder = Finish(cluster, 1, Begin(cluster, 1)).value();
  TestingCluster resumed(model(), 1, plan::Accumulate::kFloat);
  const auto reply = resumed.service(0).Configure(resumed.ConfigureRequest(0, folder));
  ASSERT_OK(reply.status());
  EXPECT_EQ(reply->version(), 1);
  ASSERT_OK(TestingCluster::AdmitWorkers(resumed.service(0)));
  TestingClient client(&resumed.service(0), &resumed.client_transport(), 1, 1);
  ASSERT_OK(client.Connect());
  EXPECT_EQ(client.granted().version(), 1);
  ASSERT_OK(client.Read(0, 1, cluster.partitions()[0].count * 4).status());
  EXPECT_FALSE(resumed.BeginAttempt(1, 1).ok());
  ASSERT_OK(resumed.BeginAttempt(2, 1));
}

TEST_P(CheckpointServiceTest, RefusesWhatDoesNotFit) {
  TestingCluster cluster(model(), 1, plan::Accumulate::kFloat);
  EXPECT_FALSE(cluster.service(0).WriteCheckpoint(Request(0, folder_, true)).ok());
  ASSERT_OK(cluster.Configure());
  EXPECT_THAT(Describe(cluster.service(0).WriteCheckpoint(Request(5, folder_, true)).status()),
              HasSubstr("cannot write the checkpoint of step 5: version 0 is published"));
  const auto failed = cluster.service(0).WriteCheckpoint(Request(0, folder_ + "/absent", false));
  EXPECT_THAT(Describe(failed.status()), HasSubstr("absent"));
  // A failed checkpoint does not block commits.
  Step(cluster, 1);
  // Repeated calls get the same answer.
  const std::string folder = Begin(cluster, 1);
  const auto first = cluster.service(0).WriteCheckpoint(Request(1, folder, false));
  ASSERT_OK(first.status());
  const auto second = cluster.service(0).WriteCheckpoint(Request(1, folder, false));
  ASSERT_OK(second.status());
  EXPECT_EQ(first->SerializeAsString(), second->SerializeAsString());
}

// Else a server that ends meanwhile leaves a part of a shard in a checkpoint that is complete.
TEST_P(CheckpointServiceTest, ABeginThatComesLateWritesNoShardAgain) {
  TestingCluster cluster(model(), 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  Step(cluster, 1);
  const std::string folder = Begin(cluster, 1);
  ASSERT_OK(cluster.service(0).WriteCheckpoint(Request(1, folder, false)).status());
  const std::string shard = folder + "/server-0000.shard";
  ASSERT_OK(WriteFileAtomically(shard, "as it was written"));
  ASSERT_OK(cluster.service(0).WriteCheckpoint(Request(1, folder, true)).status());
  ASSERT_OK(cluster.service(0).WriteCheckpoint(Request(1, folder, false)).status());
  EXPECT_EQ(ReadFile(shard).value(), "as it was written");
  // In an emptied folder it is another try.
  ASSERT_TRUE(std::filesystem::remove(shard));
  ASSERT_OK(cluster.service(0).WriteCheckpoint(Request(1, folder, true)).status());
  ASSERT_OK(cluster.service(0).WriteCheckpoint(Request(1, folder, false)).status());
  EXPECT_TRUE(std::filesystem::exists(shard));
}

// A pipe that nobody reads stands for a disk that hangs.
TEST_P(CheckpointServiceTest, AStopDoesNotWaitForAHungDisk) {
  UniqueFd disk;  // outlives the writer, which may come to it late
  TestingCluster cluster(model(), 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  Step(cluster, 1);
  const std::string folder = CheckpointDirectory::Take(checkpoints())->Begin(1).value();
  const std::string shard = folder + "/server-0000.shard";
  ASSERT_EQ(mkfifo(shard.c_str(), 0600), 0);
  ASSERT_OK(cluster.service(0).WriteCheckpoint(Request(1, folder, true)).status());
  ASSERT_OK(cluster.BeginAttempt(2, 1));
  ASSERT_OK(cluster.Prepare(2, 1).status());
  absl::Status committed;
  std::thread commit([&] { committed = cluster.Commit(2, 1); });
  cluster.service(0).Stop();
  commit.join();
  EXPECT_TRUE(absl::IsCancelled(committed)) << committed;
  EXPECT_FALSE(cluster.BeginAttempt(3, 1).ok()) << "half a commit is no version";
  disk.Reset(open(shard.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // it writes again
}

TEST_P(CheckpointServiceTest, ADamagedCheckpointIsNamedOnRestore) {
  TestingCluster cluster(model(), 2, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  Step(cluster, 1);
  const std::string folder = Finish(cluster, 1, Begin(cluster, 1)).value();
  const std::string shard = folder + "/server-0001.shard";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(shard) / 2));
  file.put('\x5A');
  file.put('\xA5');
  file.close();
  TestingCluster resumed(model(), 1, plan::Accumulate::kFloat);
  EXPECT_THAT(Describe(resumed.Configure(folder)), HasSubstr("server-0001.shard"));
  EXPECT_THAT(Describe(resumed.Configure(CheckpointPath(checkpoints(), 9))),
              HasSubstr("step-00000009"));
}

}  // namespace
}  // namespace shoal::server
