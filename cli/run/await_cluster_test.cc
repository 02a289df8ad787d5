#include "cli/run/await_cluster.h"

#include "cli/testing/fake_coordinator.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

using ::testing::HasSubstr;

const auto kTellNobody = [](const std::string&) {};
const auto kAllIsWell = [] { return absl::OkStatus(); };

TEST(AwaitCluster, CountsServersAlone) {
  const FakeCoordinator coordinator;  // with a worker, and no server
  const auto channel = coordinator.Connect();
  const auto await = [&](int64_t servers) {
    return AwaitCluster(*channel, servers, absl::Seconds(1), kTellNobody, kAllIsWell);
  };
  const absl::Status late = await(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(Message(late)), HasSubstr("0 of 1 servers"));
  EXPECT_TRUE(await(0).ok());
}

TEST(AwaitCluster, EndsWithWhatIsWrong) {
  const FakeCoordinator coordinator;
  const absl::Status status =
      AwaitCluster(*coordinator.Connect(), 1, absl::Minutes(10), kTellNobody,
                   [] { return Unavailable("server-0 was killed"); });
  EXPECT_THAT(std::string(Message(status)), HasSubstr("server-0 was killed"));
}

TEST(AwaitCluster, SaysWhatIsInTheWayOfTheCoordinator) {
  const auto nobody =
      rpc::Channel::Create("127.0.0.1:1", rpc::Token::Generate(), rpc::Role::kCoordinator);
  std::string told;
  const absl::Status status = AwaitCluster(
      *nobody, 0, absl::Minutes(10), [&](const std::string& text) { told = text; },
      [&] { return told.empty() ? absl::OkStatus() : absl::CancelledError("Ctrl-C"); });
  EXPECT_EQ(status, absl::CancelledError("Ctrl-C"));
  EXPECT_THAT(told, HasSubstr("trying for"));
}

}  // namespace
}  // namespace shoal::cli
