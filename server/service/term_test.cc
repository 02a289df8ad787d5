// Lives of the coordinator at a server: what a later one asks, what an earlier one is refused.
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

class TermTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

TEST_F(TermTest, CommandsOfAnEarlierTermAreRefusedByName) {
  TestingCluster cluster(folder_ / "model", 1, plan::Accumulate::kFloat);
  ParameterService& service = cluster.service(0);
  const auto configure = [&](int64_t term) {
    proto::ConfigureRequest request = cluster.ConfigureRequest(0);
    request.set_term(term);
    return service.Configure(request).status();
  };
  const auto all_but_configure = [&](int64_t term) {
    const auto of = [&](auto request) {
      request.set_term(term);
      return request;
    };
    return std::vector<absl::Status>{
        service.BeginAttempt(of(OfTestingJob<proto::BeginAttemptRequest>())).status(),
        service.Prepare(of(OfTestingJob<proto::PrepareRequest>())).status(),
        service.Commit(of(OfTestingJob<proto::CommitRequest>())).status(),
        service.WriteCheckpoint(of(OfTestingJob<proto::WriteCheckpointRequest>())).status(),
        service.FenceClient(of(proto::FenceClientRequest())).status(),
        service.ReleaseJob(of(OfTestingJob<proto::ReleaseJobRequest>())).status()};
  };
  ASSERT_OK(configure(3));
  ASSERT_OK(configure(4));  // a later life's repetition
  for (int i = 0; i < 2; ++i) {
    std::vector<absl::Status> refused = all_but_configure(3);
    refused.push_back(configure(3));
    for (const absl::Status& status : refused) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(Describe(status), HasSubstr("is of term 3 of the coordinator, and term 4 has"));
    }
  }
  ASSERT_OK(cluster.service(0).GetChecksums(OfTestingJob<proto::GetChecksumsRequest>()).status());
  service.ReleaseAll();
  ASSERT_OK(configure(1));  // of another coordinator
}

}  // namespace
}  // namespace shoal::server
