// Connections that close before the client has adopted them.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/testing/client_rig.h"
#include "core/base/status.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/forwarding_transport.h"

namespace shoal::client {
namespace {

// When a complete connection can be interfered with before the client has it.
enum class Moment { kCompleted, kChecked };
// A failure at the first moment makes the client give up the connection.
using Interfere = std::function<absl::Status(Moment)>;

class InterferingConnection final : public transport::Connection {
 public:
  InterferingConnection(std::unique_ptr<transport::Connection> inner, const Interfere* interfere)
      : inner_(std::move(inner)), interfere_(interfere) {}

  uint64_t id() const override { return inner_->id(); }
  const std::string& peer() const override { return inner_->peer(); }
  std::vector<int64_t> remote_region_sizes() const override {
    std::vector<int64_t> sizes = inner_->remote_region_sizes();
    EXPECT_TRUE((*interfere_)(Moment::kChecked).ok());
    return sizes;
  }
  absl::Status PostReads(std::span<const transport::ReadOperation> operations) override {
    return inner_->PostReads(operations);
  }
  absl::Status PostWrites(std::span<const transport::WriteOperation> operations) override {
    return inner_->PostWrites(operations);
  }
  void Close() override { inner_->Close(); }

 private:
  const std::unique_ptr<transport::Connection> inner_;
  const Interfere* const interfere_;
};

class InterferingTransport final : public transport::ForwardingTransport {
 public:
  explicit InterferingTransport(const Interfere* interfere)
      : ForwardingTransport(transport::CreateTransport("shm").value()), interfere_(interfere) {}

  absl::StatusOr<std::unique_ptr<transport::Connector>> Offer(
      const transport::ConnectionOptions& options) override {
    SHOAL_ASSIGN_OR_RETURN(auto connector, ForwardingTransport::Offer(options));
    return std::make_unique<Connector>(std::move(connector), interfere_);
  }

 private:
  class Connector final : public transport::Connector {
   public:
    Connector(std::unique_ptr<transport::Connector> inner, const Interfere* interfere)
        : inner_(std::move(inner)), interfere_(interfere) {}
    const std::string& offer() const override { return inner_->offer(); }
    absl::StatusOr<std::unique_ptr<transport::Connection>> Complete(
        const std::string& answer) override {
      SHOAL_ASSIGN_OR_RETURN(auto connection, inner_->Complete(answer));
      SHOAL_RETURN_IF_ERROR((*interfere_)(Moment::kCompleted));
      return std::make_unique<InterferingConnection>(std::move(connection), interfere_);
    }

   private:
    const std::unique_ptr<transport::Connector> inner_;
    const Interfere* const interfere_;
  };

  const Interfere* const interfere_;
};

// A connection that closes early is recreated, however many were given up before it.
TEST(EarlyCloseTest, IsSeenAfterManyThatWereGivenUp) {
  constexpr int kGivenUp = 100;
  for (const Moment early : {Moment::kCompleted, Moment::kChecked}) {
    std::atomic<int> completed = 0;
    ClientRig* servers = nullptr;
    const Interfere interfere = [&](Moment moment) {
      const int number = moment == Moment::kCompleted ? completed++ : completed - 1;
      if (number >= 1 && number <= kGivenUp) {
        return absl::UnavailableError("given up on purpose");
      }
      if (number == kGivenUp + 1 && moment == early) {
        servers->server(0).BreakConnections();
        absl::SleepFor(absl::Milliseconds(100));  // for the client to notice
      }
      return absl::OkStatus();
    };
    ClientRig rig({.servers = 1}, std::make_unique<InterferingTransport>(&interfere));
    servers = &rig;
    const auto client = *rig.NewClient({.get_timeout = absl::Seconds(20),
                                        .max_reconnects = 10 * kGivenUp,
                                        .reconnect_delay = absl::Microseconds(1)});
    rig.Publish(0);
    ASSERT_TRUE(client->BeginRead(0).ok());
    rig.server(0).BreakConnections();
    while (completed < kGivenUp + 2) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    const auto view = client->Get(0);
    ASSERT_TRUE(view.ok()) << view.status();
    client->Release(0);
    EXPECT_EQ(completed, kGivenUp + 3);
  }
}

}  // namespace
}  // namespace shoal::client
