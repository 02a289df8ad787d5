// Two sides that talk through function calls, over real transports.
#include "core/transport/negotiate.h"

#include <map>
#include <optional>

#include "core/base/status.h"
#include "core/transport/registry/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A process of one side: its transports by preference, with a queue each.
struct Process {
  explicit Process(std::vector<std::string> transports) : names(std::move(transports)) {
    for (const std::string& name : names) {
      this->transports.push_back(*CreateTransport(name));
      queues.push_back(*this->transports.back()->CreateQueue());
    }
  }
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<EventQueue>> queues;
};

class NegotiateTest : public ::testing::Test {
 protected:
  absl::StatusOr<Negotiated> Connect(Process& connecting, Process& accepting,
                                     std::vector<bool> left_out) {
    std::map<size_t, std::unique_ptr<Connector>> connectors;
    const auto offer = [&](size_t i) -> absl::StatusOr<std::string> {
      if (cannot_offer == connecting.names[i]) {
        return ResourceExhausted("no memory for it");
      }
      SHOAL_ASSIGN_OR_RETURN(
          connectors[i],
          connecting.transports[i]->Offer({.queue = connecting.queues[i].get(), .peer = "b"}));
      return connectors[i]->offer();
    };
    const auto complete = [&](size_t i, const std::string& answer) {
      auto completed = connectors[i]->Complete(answer);
      connection = completed.ok() ? *std::move(completed) : nullptr;
      return completed.status();
    };
    return Negotiate({.peer = "b",
                      .transports = connecting.names,
                      .left_out = std::move(left_out),
                      .offer = offer,
                      .ask = [&](const auto& offers) { return Take(accepting, offers); },
                      .complete = complete});
  }

  absl::StatusOr<TakenOffer> Take(Process& process, const std::vector<NamedOffer>& offers) {
    offered.push_back(static_cast<int>(offers.size()));
    const auto accept = [&](size_t i, const std::string& offer) -> absl::StatusOr<std::string> {
      if (refuses == process.names[i]) {
        return FailedPrecondition("not today");
      }
      SHOAL_ASSIGN_OR_RETURN(
          Acceptance acceptance,
          process.transports[i]->Accept(offer, {.queue = process.queues[i].get(), .peer = "a"}));
      accepted.push_back(std::move(acceptance.connection));
      return spoilt == process.names[i] ? "spoilt" : std::move(acceptance.answer);
    };
    SHOAL_ASSIGN_OR_RETURN(TakenOffer taken,
                           TakeOffer(process.names, offers, "a", unavailable, accept));
    if (answers_with.has_value()) {
      taken.transport = *answers_with;
    }
    return taken;
  }

  // Destroys connections before the processes, which belong to the tests.
  void Drop() {
    connection.reset();
    accepted.clear();
  }

  std::string cannot_offer;
  std::string refuses;
  std::string spoilt;
  std::optional<std::string> answers_with;
  std::vector<std::string> unavailable;
  std::vector<int> offered;
  std::unique_ptr<Connection> connection;
  std::vector<std::unique_ptr<Connection>> accepted;
};

TEST_F(NegotiateTest, TheAcceptingSidesFirstIsTakenAndSaysNothing) {
  Process a({"tcp", "shm"});
  Process b({"shm", "tcp"});
  const auto taken = Connect(a, b, {false, false});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->transport, 1U);
  EXPECT_EQ(taken->reason, "");
  EXPECT_THAT(taken->not_completed, IsEmpty());
  Drop();
}

TEST_F(NegotiateTest, EveryReasonForAnotherIsTold) {
  Process a({"shm", "tcp"});
  Process b({"shm", "tcp"});
  unavailable = {"verbs: no device"};
  refuses = "shm";
  const auto refused = Connect(a, b, {false, false});
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(refused->transport, 1U);
  EXPECT_EQ(refused->reason, "verbs: no device; shm: not today");
  const auto left_out = Connect(a, b, {true, false});
  ASSERT_TRUE(left_out.ok()) << left_out.status();
  EXPECT_EQ(left_out->reason, "verbs: no device; shm: not offered by a");
  cannot_offer = "shm";
  ASSERT_TRUE(Connect(a, b, {false, false}).ok());
  EXPECT_THAT(offered, ElementsAre(2, 1, 1));
  Drop();
}

TEST_F(NegotiateTest, WhatCannotBeCompletedIsLeftOutOfTheNextTry) {
  Process a({"shm", "tcp"});
  Process b({"shm", "tcp"});
  spoilt = "shm";
  const auto second = Connect(a, b, {false, false});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->transport, 1U);
  EXPECT_THAT(second->not_completed, ElementsAre(0U));
  EXPECT_THAT(second->reason, HasSubstr("shm: "));
  EXPECT_THAT(offered, ElementsAre(2, 1));
  Process only({"shm"});
  EXPECT_FALSE(Connect(only, b, {false}).ok());
  Drop();
}

TEST_F(NegotiateTest, ErrorsNameThePeer) {
  Process a({"tcp"});
  Process b({"shm"});
  EXPECT_EQ(Message(Connect(a, b, {false}).status()),
            "no transport connects a: shm: not offered by a");
  EXPECT_THAT(std::string(Message(Connect(a, b, {true}).status())),
              HasSubstr("no transport is left to offer to b"));
  Process c({"tcp"});
  answers_with = "pigeon";
  EXPECT_THAT(std::string(Message(Connect(a, c, {false}).status())),
              HasSubstr("b answered with transport 'pigeon'"));
  Drop();
}

}  // namespace
}  // namespace shoal::transport
