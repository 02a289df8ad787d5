// The memory that the runtime will take, and the buffers of its messages, from the lists only.
#include <algorithm>

#include "core/plan/memory/stage_memory.h"
#include "core/plan/schedule/builders/testing/random_schedule.h"
#include "core/plan/schedule/schedule_check.h"
#include "core/plan/schedule/schedule_queues.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

StageMemory Replayed(const Schedule& schedule, int stage, const ScheduleCosts& costs) {
  return ReplayMemory(
      schedule, stage,
      [&](int chunk, int microbatch) {
        const ChunkCost& cost = costs.Of(stage, chunk, microbatch);
        return ChunkBytes{
            .activations = cost.activation_bytes, .gradients = cost.gradient_bytes, .message = 10};
      },
      1);
}

TEST(StageMemory, IsWhatTheSimulationCounts) {
  Random random(21);
  double capacities = 0;
  double peaks = 0;
  for (int round = 0; round < 100; ++round) {
    const Schedule schedule = RandomSchedule(random);
    const ScheduleCosts costs = RandomCosts(random, schedule.shape, 0.1 + random.Uniform());
    const auto plan = AddOffloads(schedule, costs, RandomChoice(random, schedule.shape, costs));
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const auto times = SimulateSchedule(plan->schedule, costs);
    ASSERT_TRUE(times.ok()) << times.status().message();
    for (int stage = 0; stage < schedule.shape.stages; ++stage) {
      const StageMemory memory = Replayed(plan->schedule, stage, costs);
      EXPECT_EQ(memory.Of(MemoryPool::kDevice).peak, times->stages[stage].peak_device_bytes);
      EXPECT_EQ(memory.Of(MemoryPool::kHost).peak, times->stages[stage].peak_host_bytes);
      for (const PoolNeeds& needs : memory.pools) {
        EXPECT_GE(needs.capacity, needs.peak);
        EXPECT_LE(needs.capacity, needs.peak + needs.peak / 2) << schedule.name;
        capacities += static_cast<double>(needs.capacity);
        peaks += static_cast<double>(needs.peak);
      }
    }
  }
  EXPECT_LE(capacities,
            1.03 * peaks);  // though the longest microbatch is eleven times the shortest
}

TEST(StageMemory, OfEqualPiecesHasNoHoles) {
  const Schedule schedule = UniformPipe(4, 3, 16);
  const ScheduleCosts costs(schedule.shape, {.offload = 1,
                                             .reload = 1,
                                             .activation_bytes = 100,
                                             .offload_bytes = 100,
                                             .gradient_bytes = 100});
  const auto plan = AddOffloads(schedule, costs, FirstChunks(schedule.shape, 2));
  for (int stage = 0; stage < 4; ++stage) {
    for (const PoolNeeds& needs : Replayed(plan->schedule, stage, costs).pools) {
      EXPECT_EQ(needs.capacity, needs.peak);
    }
  }
}

TEST(StageMemory, MessagesWithinAStageAreItsOwn) {
  const auto messages = [](const Schedule& schedule, int stage) {
    return Replayed(schedule, stage, ScheduleCosts(schedule.shape, {}))
        .Of(MemoryPool::kMessages)
        .peak;
  };
  const Schedule alone = GPipe(1, 3, 2);  // F0.0 F0.1 F1.0 ...: two wait, plus the one being made
  EXPECT_EQ(messages(alone, 0), 30);
  const Schedule looped = GPipe(2, 3, 2);
  EXPECT_EQ(messages(looped, 0), 0);
  const Schedule v = VHalf(3, 4);
  EXPECT_GT(messages(v, 2), 0);  // the turn
  EXPECT_EQ(messages(v, 1), 0);
}

TEST(MessageQueues, OfAPipelineOfTwo) {
  const Schedule schedule = InterleavedOneForwardOneBackward(2, 2, 4);
  const std::vector<MessageQueue> queues = MessageQueues(schedule);
  ASSERT_EQ(queues.size(), 4u);
  EXPECT_EQ(queues[0].from, 0);
  EXPECT_EQ(queues[0].to, 1);
  EXPECT_FALSE(queues[0].gradients);
  EXPECT_EQ(queues[0].messages, 8);
  EXPECT_EQ(queues[1].messages, 4);  // gradients of chunk 1's input, to the last stage's chunk 0
  EXPECT_EQ(queues[2].messages, 4);
  EXPECT_EQ(queues[3].messages, 8);
  EXPECT_EQ(queues[0].send_buffers, 8);
  EXPECT_EQ(queues[1].send_buffers, 4);
  EXPECT_EQ(MessageQueues(schedule, kDeviceMessages)[0].send_buffers, 2);
  EXPECT_EQ(MessageQueues(GPipe(1, 2, 3)).size(), 0u);
}

TEST(MessageQueues, AreBetweenNeighbours) {
  EXPECT_THAT(Neighbours({.stages = 4, .chunks = 1}, 0), testing::ElementsAre(1));
  EXPECT_THAT(Neighbours({.stages = 4, .chunks = 2}, 0), testing::ElementsAre(1, 3));
  EXPECT_THAT(Neighbours({.stages = 4, .chunks = 2}, 2), testing::ElementsAre(1, 3));
  EXPECT_THAT(Neighbours({.stages = 4, .chunks = 2, .placement = Placement::kVShaped}, 0),
              testing::ElementsAre(1));
  EXPECT_THAT(Neighbours({.stages = 1, .chunks = 3}, 0), testing::IsEmpty());
}

TEST(MessageQueues, NobodyStandsStillForBuffersAndAllMessagesAreCounted) {
  Random random(22);
  for (int round = 0; round < 200; ++round) {
    const Schedule schedule = RandomSchedule(random);
    ASSERT_TRUE(CheckSchedule(schedule).ok());
    for (const int wanted : {kUsualSendBuffers, kDeviceMessages}) {
      int64_t messages = 0;
      int send_buffers = 1;
      for (const MessageQueue& queue : MessageQueues(schedule, wanted)) {
        messages += queue.messages;
        EXPECT_GE(queue.slots, 1);
        EXPECT_LE(queue.slots, queue.messages);
        EXPECT_GE(queue.send_buffers, std::min(queue.messages, wanted));
        send_buffers = std::max(send_buffers, queue.send_buffers);
      }
      EXPECT_EQ(messages, CountSends(schedule));
      EXPECT_TRUE(ProgressesWith(schedule, send_buffers)) << schedule.name;
      EXPECT_FALSE(messages > 0 && ProgressesWith(schedule, 0));
    }
  }
}

// Stage 0 makes thirteen forwards before the gradient that stage 1 awaits before all but its first
// one.
TEST(MessageQueues, HaveMoreSendBuffersWhereTheListsNeedThem) {
  constexpr int kMicrobatches = 13;
  Schedule schedule{.name = "far ahead",
                    .shape = {.stages = 2, .chunks = 2, .microbatches = kMicrobatches},
                    .stages = std::vector<StageActions>(2)};
  StageActions& first = schedule.stages[0];
  StageActions& second = schedule.stages[1];
  first = {{Operation::kForward, 0, 0}, {Operation::kForward, 1, 0}};
  second = {{Operation::kForward, 0, 0},
            {Operation::kForward, 1, 0},
            {Operation::kBackward, 1, 0},
            {Operation::kBackward, 0, 0}};
  for (int microbatch = 1; microbatch < kMicrobatches; ++microbatch) {
    first.push_back({Operation::kForward, 0, microbatch});
  }
  first.push_back({Operation::kBackward, 1, 0});
  first.push_back({Operation::kBackward, 0, 0});
  for (int microbatch = 1; microbatch < kMicrobatches; ++microbatch) {
    for (StageActions* actions : {&first, &second}) {
      if (actions == &second) {
        actions->push_back({Operation::kForward, 0, microbatch});
      }
      actions->push_back({Operation::kForward, 1, microbatch});
      actions->push_back({Operation::kBackward, 1, microbatch});
      actions->push_back({Operation::kBackward, 0, microbatch});
    }
  }
  AddMessages(schedule);
  ASSERT_TRUE(CheckSchedule(schedule).ok());
  EXPECT_FALSE(ProgressesWith(schedule, kUsualSendBuffers));
  EXPECT_EQ(MessageQueues(schedule).front().send_buffers, 2 * kUsualSendBuffers);
}

}  // namespace
}  // namespace shoal::plan
