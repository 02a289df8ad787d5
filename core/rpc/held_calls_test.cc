// Calls that go on without a thread until their connection breaks.
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "core/rpc/coordinator_service.h"
#include "core/rpc/testing/any_services.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

using Held = absl::StatusOr<HeldCall<proto::HoldConnectionReply>>;
using ::testing::_;
using ::testing::NiceMock;

class HeldCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ON_CALL(service_, HoldConnection(_))
        .WillByDefault([this](const proto::HoldConnectionRequest& request) -> Held {
          if (request.incarnation() == 0) {
            return NotFound("who?");
          }
          held_.Notify();
          return HeldCall<proto::HoldConnectionReply>{.on_end = [this] { let_go_.Notify(); }};
        });
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(MakeCoordinatorService(&service_));
    server_ = Server::Start({.security = token_}, std::move(services)).value();
  }
  std::shared_ptr<Channel> Connect(const Token& token) {
    return Channel::Create(fmt::format("127.0.0.1:{}", server_->port()), token, Role::kCoordinator);
  }
  int64_t Hold(Channel& coordinator, uint64_t incarnation) {
    proto::HoldConnectionRequest request;
    request.set_incarnation(incarnation);
    return coordinator.Hold(&CoordinatorService::HoldConnection, request,
                            [this](const absl::Status& why) {
                              why_ = why;
                              ended_.Notify();
                            });
  }

  const Token token_ = Token::Generate();
  NiceMock<AnyCoordinator> service_;
  absl::Notification held_;
  absl::Notification let_go_;
  absl::Notification ended_;
  absl::Status why_;
  std::unique_ptr<Server> server_;
};

TEST_F(HeldCallsTest, EndWhenTheCallerIsGone) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  const int64_t call = Hold(*coordinator, 1);
  held_.WaitForNotification();
  coordinator->Cancel(call + 1);  // another
  EXPECT_TRUE(absl::IsUnknown(coordinator->Call(&CoordinatorService::GetStatus, {}).status()));
  EXPECT_FALSE(let_go_.HasBeenNotified());
  EXPECT_FALSE(ended_.HasBeenNotified());
  coordinator->Cancel(call);
  ended_.WaitForNotification();
  EXPECT_TRUE(absl::IsCancelled(why_)) << why_;
  let_go_.WaitForNotification();
}

TEST_F(HeldCallsTest, EndAtOnceWhenTheServerGoesDown) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  Hold(*coordinator, 1);
  held_.WaitForNotification();
  server_->Shutdown(absl::InfiniteDuration());
  EXPECT_TRUE(let_go_.HasBeenNotified());
  ended_.WaitForNotification();
}

TEST_F(HeldCallsTest, AreRefusedByTheService) {
  const std::shared_ptr<Channel> coordinator = Connect(token_);
  Hold(*coordinator, 0);
  ended_.WaitForNotification();
  EXPECT_TRUE(absl::IsNotFound(why_)) << why_;
}

TEST_F(HeldCallsTest, AreRefusedWithoutTheToken) {
  EXPECT_CALL(service_, HoldConnection(_)).Times(0);
  const std::shared_ptr<Channel> coordinator = Connect(Token::Generate());
  Hold(*coordinator, 1);
  ended_.WaitForNotification();
  EXPECT_TRUE(absl::IsUnauthenticated(why_)) << why_;
}

}  // namespace
}  // namespace shoal::rpc
