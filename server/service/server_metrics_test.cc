#include "server/service/server_metrics.h"

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

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
  server.FollowTransport(transport);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("shoal_ps_gpu_ranges_total")));
  transport.figures.gpu_ranges = {{"dma_buf", 3}, {"refused", 1}};
  server.FollowTransport(transport);
  transport.figures.gpu_ranges["dma_buf"] = 5;
  server.FollowTransport(transport);
  EXPECT_THAT(metrics.Text(),
              HasSubstr("shoal_ps_gpu_ranges_total{route=\"dma_buf\",transport=\"verbs\"} 5"));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("shoal_ps_gpu_ranges_total{route=\"refused\",transport=\"verbs\"} 1"));
}

}  // namespace
}  // namespace shoal::server
