#include "server/service/server_metrics.h"

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// A transport with statistics only.
class CountingTransport final : public transport::Transport {
 public:
  std::string_view name() const override { return "verbs"; }
  const transport::Capabilities& capabilities() const override { return capabilities_; }
  transport::TransportStatistics statistics() const override { return figures; }
  absl::StatusOr<std::unique_ptr<transport::EventQueue>> CreateQueue() override {
    return Unimplemented("no queue");
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Allocate(int64_t, transport::Access) override {
    return Unimplemented("no memory");
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Register(std::span<std::byte>,
                                                              transport::Access) override {
    return Unimplemented("no memory");
  }
  absl::StatusOr<std::unique_ptr<transport::Connector>> Offer(
      const transport::ConnectionOptions&) override {
    return Unimplemented("no connection");
  }
  absl::StatusOr<transport::Acceptance> Accept(const std::string&,
                                               const transport::ConnectionOptions&) override {
    return Unimplemented("no connection");
  }

  transport::TransportStatistics figures;

 private:
  transport::Capabilities capabilities_;
};

TEST(ServerMetrics, FollowWhatATransportCounts) {
  Metrics metrics;
  ServerMetrics server(metrics);
  CountingTransport transport;
  transport::TransportStatistics counted;
  server.FollowTransport(transport, counted);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("shoal_ps_gpu_ranges_total")));
  transport.figures.gpu_ranges = {{"dma_buf", 3}, {"refused", 1}};
  server.FollowTransport(transport, counted);
  transport.figures.gpu_ranges["dma_buf"] = 5;
  transport.figures.device_errors = {{"no_answer", 2}};
  server.FollowTransport(transport, counted);
  EXPECT_THAT(metrics.Text(),
              HasSubstr("shoal_ps_gpu_ranges_total{route=\"dma_buf\",transport=\"verbs\"} 5"));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("shoal_ps_gpu_ranges_total{route=\"refused\",transport=\"verbs\"} 1"));
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_verbs_errors_total{kind=\"no_answer\"} 2"));
}

TEST(ServerMetrics, AddUpTheTransportsOfJobs) {
  Metrics metrics;
  ServerMetrics server(metrics);
  for (const int64_t errors : {4, 1, 3}) {
    CountingTransport of_job;
    of_job.figures.device_errors = {{"local", errors}};
    transport::TransportStatistics counted;
    server.FollowTransport(of_job, counted);
    server.FollowTransport(of_job, counted);
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_verbs_errors_total{kind=\"local\"} 8\n"));
}

TEST(ServerMetrics, ForgetAReleasedJob) {
  TestingCluster cluster(testing::TempDir() + "service-metrics", 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, 1);
  ASSERT_OK(client.Connect());
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_clients 1\n"));
  EXPECT_THAT(cluster.MetricsText(0), ContainsRegex("shoal_ps_partitions [1-9]"));
  const std::string none_held = "shoal_ps_resident_bytes{kind=\"master\"} 0\n";
  EXPECT_THAT(cluster.MetricsText(0), Not(HasSubstr(none_held)));
  proto::ReleaseJobRequest request;
  request.set_job_id(cluster.ConfigureRequest(0).job_id());
  ASSERT_OK(cluster.service(0).ReleaseJob(request).status());
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_clients 0\n"));
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr(none_held));
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_partitions 0\n"));
}

}  // namespace
}  // namespace shoal::server
