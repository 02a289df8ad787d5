#include "server/copy/state_link.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "core/base/clock.h"
#include "core/transport/registry/registry.h"
#include "gtest/gtest.h"
#include "server/copy/state_copy.h"
#include "server/copy/state_slots.h"
#include "xxhash.h"

namespace shoal::server {
namespace {

// What the giver has: at each place its number, and a part for each partition.
float ElementAt(int partition, int64_t offset) {
  return static_cast<float>(partition * 1000) + static_cast<float>(offset % 997);
}

class StateLinkTest : public testing::TestWithParam<const char*> {
 protected:
  StateLinkTest()
      : theirs_(*transport::CreateTransport(GetParam())),
        ours_(*transport::CreateTransport(GetParam())) {
    StartGiver();
    link_.emplace(StateLink::Options{.giver = "server-0",
                                     .reader = "server-1",
                                     .job_id = "job-1",
                                     .run = 1,
                                     .transports = {ours_.get()},
                                     .clock = &clock_},
                  GiverCalls{.read = [this](const auto& request) { return Answer(request); },
                             .connect =
                                 [this](const auto& request) {
                                   ++connects_;
                                   return giver_->Connect(request);
                                 }});
  }
  // Knows nobody who has connected before.
  void StartGiver() {
    giver_ = std::make_unique<StateSlots>(std::vector<transport::Transport*>{theirs_.get()},
                                          std::vector<std::string>());
  }

  absl::StatusOr<proto::ReadStateReply> Answer(const proto::ReadStateRequest& request) {
    return giver_->Fill(request, [&](std::span<std::byte> slot) {
      std::vector<float> elements;
      for (int64_t i = 0; i < request.count(); ++i) {
        elements.push_back(ElementAt(request.partition(), request.offset() + i));
      }
      proto::ReadStateReply reply;
      reply.set_hash(XXH3_64bits(elements.data(), elements.size() * sizeof(float)));
      elements.front() += damage_-- > 0 ? 1.0F : 0.0F;
      if (slot.empty()) {
        ++in_answers_;
        reply.set_elements(elements.data(), elements.size() * sizeof(float));
      } else {
        std::memcpy(slot.data(), elements.data(), elements.size() * sizeof(float));
      }
      return absl::StatusOr<proto::ReadStateReply>(reply);
    });
  }

  // Whether it is what the giver has.
  bool Read(int partition, int64_t offset, int64_t count) {
    proto::ReadStateRequest request;
    request.set_partition(partition);
    request.set_offset(offset);
    request.set_count(count);
    std::vector<float> out(static_cast<size_t>(count));
    if (!link_->Read(request, out).ok()) {
      return false;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (out[static_cast<size_t>(i)] != ElementAt(partition, offset + i)) {
        return false;
      }
    }
    return true;
  }

  ManualClock clock_;
  const std::unique_ptr<transport::Transport> theirs_;
  const std::unique_ptr<transport::Transport> ours_;
  std::unique_ptr<StateSlots> giver_;
  std::atomic<int> connects_ = 0;
  std::atomic<int> in_answers_ = 0;
  std::atomic<int> damage_ = 0;  // so many pieces
  std::optional<StateLink> link_;
};

INSTANTIATE_TEST_SUITE_P(Transports, StateLinkTest, testing::Values("shm", "tcp"));

TEST_P(StateLinkTest, NothingComesInAnswers) {
  EXPECT_TRUE(Read(0, 0, kMostStateElements));
  EXPECT_TRUE(Read(3, 17, 1));
  std::vector<std::thread> readers;
  std::atomic<int> right = 0;
  for (int i = 0; i < 2 * kReadsAtOnce; ++i) {
    readers.emplace_back([this, i, &right] {
      for (int64_t piece = 0; piece < 8; ++piece) {
        right += Read(i, piece * 1000, 5000 + i) ? 1 : 0;
      }
    });
  }
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_EQ(right, 8 * 2 * kReadsAtOnce);
  EXPECT_EQ(in_answers_, 0);
  EXPECT_EQ(connects_, 1);
}

TEST_P(StateLinkTest, AGiverThatForgotTheConnectionAnswersAndIsConnectedToAgain) {
  ASSERT_TRUE(Read(0, 0, 100));
  StartGiver();
  EXPECT_TRUE(Read(1, 0, 100));
  EXPECT_TRUE(Read(2, 0, 100));
  EXPECT_EQ(in_answers_, 2);
  EXPECT_EQ(connects_, 1) << "not in vain at each piece";
  clock_.Advance(absl::Seconds(6));
  EXPECT_TRUE(Read(3, 0, 100));
  EXPECT_EQ(in_answers_, 2);
  EXPECT_EQ(connects_, 2);
}

TEST_P(StateLinkTest, WhatIsNotWhatTheGiverReadIsReadAgain) {
  ASSERT_TRUE(Read(0, 0, 100));
  damage_ = 1;
  EXPECT_TRUE(Read(1, 0, 100));
  EXPECT_EQ(in_answers_, 1);
  damage_ = 1;
  EXPECT_FALSE(Read(1, 0, 100)) << "in the answer too";
}

TEST_P(StateLinkTest, OneThatFailsAgainAndAgainIsLeftAloneForLonger) {
  giver_ = std::make_unique<StateSlots>(std::vector<transport::Transport*>(),
                                        std::vector<std::string>());
  for (const int tries : {1, 2, 3, 3, 4, 4, 4, 4}) {
    EXPECT_TRUE(Read(0, 0, 100));
    EXPECT_EQ(connects_, tries);
    clock_.Advance(absl::Seconds(10.5));
  }
}

TEST_P(StateLinkTest, ConnectionsOfAGiverAreBoundedAndThoseThatCloseMakeRoom) {
  const auto connect = [this] {
    auto link = std::make_unique<StateLink>(
        StateLink::Options{.giver = "server-0", .reader = "server-2", .transports = {ours_.get()}},
        GiverCalls{.read = [this](const auto& request) { return Answer(request); },
                   .connect = [this](const auto& request) { return giver_->Connect(request); }});
    proto::ReadStateRequest request;
    request.set_count(1);
    float out = 0;
    EXPECT_TRUE(link->Read(request, {&out, 1}).ok());
    return link;
  };
  std::vector<std::unique_ptr<StateLink>> links;
  for (size_t i = 0; i < kMostStateSlots; ++i) {
    links.push_back(connect());
  }
  EXPECT_EQ(in_answers_, 0);
  links.push_back(connect());
  EXPECT_EQ(in_answers_, 1) << "one too many reads all the same";
  links.clear();
  EXPECT_TRUE(Read(0, 0, 100));
  EXPECT_EQ(in_answers_, 1);
}

TEST_P(StateLinkTest, NobodyReadsInANameThatIsNone) {
  proto::ConnectStateRequest request;
  EXPECT_EQ(giver_->Connect(request).status().code(), absl::StatusCode::kInvalidArgument);
  proto::ReadStateRequest read;
  read.set_reader("unknown");
  read.set_count(1);
  EXPECT_EQ(Answer(read)->elements().size(), sizeof(float));
}

}  // namespace
}  // namespace shoal::server
