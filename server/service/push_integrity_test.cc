// Pushes that are not, or may not be, what the client wrote.
#include <filesystem>

#include "absl/time/clock.h"
#include "core/base/random.h"
#include "core/base/testing/status.h"
#include "core/transport/testing/forwarding_transport.h"
#include "server/service/testing/client.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using testing::HasSubstr;

constexpr uint64_t kWorker = 3;

class PushIntegrityTest : public testing::Test {
 protected:
  PushIntegrityTest() : folder_(testing::TempDir() + "integrity-" + SecureToken()) {}
  ~PushIntegrityTest() override { std::filesystem::remove_all(folder_); }

  static TestingClient Client(TestingCluster& cluster) {
    return {&cluster.service(0), &cluster.client_transport(), kWorker,
            cluster.shard_map().generation};
  }
  static TestingClient::Push MakePush(const TestingCluster& cluster) {
    return {.gradient = cluster.Gradient(kWorker, 1, 1, 0)};
  }

  const std::string folder_;
};

// A transport, as RDMA, whose header may be in place before the payload.
class UnorderedTransport final : public transport::ForwardingTransport {
 public:
  explicit UnorderedTransport(std::unique_ptr<transport::Transport> inner)
      : ForwardingTransport(std::move(inner)), capabilities_(ForwardingTransport::capabilities()) {
    capabilities_.writes_in_order = false;
  }
  const transport::Capabilities& capabilities() const override { return capabilities_; }

 private:
  transport::Capabilities capabilities_;
};

TEST_F(PushIntegrityTest, APushWaitsForItsDoorbellWhereWritesComeInAnyOrder) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat, 1 << 14,
                         {.wrap_server = [](std::unique_ptr<transport::Transport> inner) {
                           return std::make_unique<UnorderedTransport>(std::move(inner));
                         }});
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster);
  ASSERT_OK(client.Connect());
  TestingClient::Push push = MakePush(cluster);
  push.ring = false;
  const uint64_t push_id = client.Send(0, push);
  absl::SleepFor(absl::Milliseconds(200));  // of looks every 5
  EXPECT_EQ(client.Poll(0, push_id), std::nullopt);
  client.Ring(0);
  EXPECT_EQ(client.WaitFor(0, push_id), (TestingClient::Answer{}));
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_pushes_without_doorbell_total 0"));
}

TEST_F(PushIntegrityTest, APushThatIsNotWhatWasSentCountsOnceItIsSentAgain) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster);
  ASSERT_OK(client.Connect());
  TestingClient::Push push = MakePush(cluster);
  push.verify = true;
  std::vector<float> damaged = push.gradient;
  reinterpret_cast<uint8_t*>(damaged.data())[damaged.size() * 2] ^= 1;
  const transport::PushHeader header = client.Header(push);
  client.Write(0, header, damaged, /*ring=*/true);
  EXPECT_EQ(client.WaitFor(0, header.push_id), std::nullopt);
  EXPECT_TRUE(client.closed());
  EXPECT_THAT(cluster.MetricsText(0),
              HasSubstr("shoal_ps_requests_total{code=\"DATA_LOSS\",op=\"push\"} 1"));
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_malformed_pushes_total 1"));

  ASSERT_OK(client.Connect());
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{}));
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{.applied_before = true}));
  const auto gradients = cluster.Prepare(1, 1);
  ASSERT_TRUE(gradients.ok()) << Describe(gradients.status());
  EXPECT_EQ(gradients->pushes(0), 1);
}

TEST_F(PushIntegrityTest, APushWhoseHeaderIsDamagedCountsOnceItIsSentAgain) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster);
  ASSERT_OK(client.Connect());
  const TestingClient::Push push = MakePush(cluster);
  transport::PushHeader header = client.Header(push);
  header.step ^= 4;
  client.Write(0, header, push.gradient, /*ring=*/true);
  EXPECT_EQ(client.WaitFor(0, header.push_id), std::nullopt);
  EXPECT_TRUE(client.closed());
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_malformed_pushes_total 1"));

  ASSERT_OK(client.Connect());
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{}));
  const auto gradients = cluster.Prepare(1, 1);
  ASSERT_TRUE(gradients.ok()) << Describe(gradients.status());
  EXPECT_EQ(gradients->pushes(0), 1);
}

// A doorbell that came late, or twice, while the next push was being written.
TEST_F(PushIntegrityTest, AHeaderThatBecomesWholeAfterADoorbellIsNoDamage) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster);
  ASSERT_OK(client.Connect());
  const TestingClient::Push push = MakePush(cluster);
  const transport::PushHeader header = client.Header(push);
  transport::PushHeader half = header;
  half.header_hash = 0;
  client.Write(0, half, push.gradient, /*ring=*/true);
  client.Write(0, header, push.gradient, /*ring=*/true);
  EXPECT_EQ(client.WaitFor(0, header.push_id), (TestingClient::Answer{}));
  absl::SleepFor(absl::Milliseconds(100));  // of looks every 5
  EXPECT_EQ(client.Poll(0, header.push_id), (TestingClient::Answer{}));
  EXPECT_FALSE(client.closed());
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_malformed_pushes_total 0"));
}

TEST_F(PushIntegrityTest, WhatComesWithoutAHashIsNotChecked) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster);
  ASSERT_OK(client.Connect());
  TestingClient::Push push = MakePush(cluster);
  const transport::PushHeader header = client.Header(push);
  push.gradient[0] += 1;
  client.Write(0, header, push.gradient, /*ring=*/true);
  EXPECT_EQ(client.WaitFor(0, header.push_id), (TestingClient::Answer{}));
}

// The step goes on without it: nothing of it is in Prepare.
TEST_F(PushIntegrityTest, APushOfWhatIsFrozenIsRefused) {
  TestingCluster::groups = {{.match = "*embed_tokens*", .freeze = true}};
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  TestingCluster::groups.clear();
  ASSERT_TRUE(cluster.partitions()[0].frozen);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster);
  ASSERT_OK(client.Connect());
  EXPECT_EQ(client.SendAndWait(MakePush(cluster)),
            (TestingClient::Answer{.code = absl::StatusCode::kUnimplemented}));
  auto prepare = OfTestingJob<proto::PrepareRequest>();
  prepare.set_step(1);
  prepare.set_attempt(1);
  const auto prepared = cluster.service(0).Prepare(prepare);
  ASSERT_OK(prepared.status());
  for (const int partition : prepared->partitions()) {
    EXPECT_FALSE(cluster.partitions()[static_cast<size_t>(partition)].frozen);
  }
  EXPECT_THAT(cluster.MetricsText(0),
              HasSubstr("shoal_ps_requests_total{code=\"OK\",op=\"push\"} 0"));
}

}  // namespace
}  // namespace shoal::server
