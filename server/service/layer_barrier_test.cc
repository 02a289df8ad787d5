#include "server/service/layer_barrier.h"

#include <map>

#include "core/base/random.h"
#include "core/transport/data_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

uint32_t Bell(int64_t step, int64_t attempt, uint32_t count) {
  return transport::BarrierDoorbell(transport::BarrierTag(step, attempt), count);
}

TEST(LayerBarrier, EndsWhenTheLastHasArrived) {
  LayerBarrier barrier;
  EXPECT_THAT(barrier.Begin(4, 1, {10, 20, 30}), IsEmpty());
  EXPECT_THAT(barrier.OnDoorbell(10, Bell(4, 1, 1)), IsEmpty());
  EXPECT_THAT(barrier.OnDoorbell(30, Bell(4, 1, 3)), IsEmpty());
  EXPECT_THAT(barrier.OnDoorbell(20, Bell(4, 1, 1)),
              UnorderedElementsAre(LayerBarrier::Ring{10, Bell(4, 1, 1)},
                                   LayerBarrier::Ring{20, Bell(4, 1, 1)},
                                   LayerBarrier::Ring{30, Bell(4, 1, 1)}));
  // A doorbell with nothing new (its answer may have been lost) is answered to its sender only.
  EXPECT_THAT(barrier.OnDoorbell(20, Bell(4, 1, 1)),
              ElementsAre(LayerBarrier::Ring{20, Bell(4, 1, 1)}));
}

TEST(LayerBarrier, IgnoresStrangersAndOtherAttempts) {
  LayerBarrier barrier;
  barrier.Begin(4, 2, {10, 20});
  EXPECT_THAT(barrier.OnDoorbell(99, Bell(4, 2, 1)), IsEmpty());
  EXPECT_THAT(barrier.OnDoorbell(10, Bell(4, 1, 7)), IsEmpty());
  EXPECT_THAT(barrier.OnDoorbell(10, Bell(5, 1, 7)), IsEmpty());
  barrier.OnDoorbell(10, Bell(4, 2, 1));
  EXPECT_THAT(barrier.OnDoorbell(20, Bell(4, 2, 1)).size(), 2U);
}

TEST(LayerBarrier, ANewAttemptTellsThoseWhoWait) {
  LayerBarrier barrier;
  barrier.Begin(4, 1, {10, 20});
  barrier.OnDoorbell(10, Bell(4, 1, 1));
  EXPECT_THAT(barrier.Begin(4, 2, {10, 20}), ElementsAre(LayerBarrier::Ring{10, Bell(4, 2, 0)},
                                                         LayerBarrier::Ring{20, Bell(4, 2, 0)}));
  EXPECT_THAT(barrier.OnDoorbell(10, Bell(4, 2, 1)), IsEmpty());
}

// With doorbells lost, repeated and late, no worker hears of a barrier before all have arrived, and
// in the end all hear of all.
TEST(LayerBarrier, SurvivesLostAndRepeatedDoorbells) {
  Random random(5);
  for (int round = 0; round < 50; ++round) {
    LayerBarrier barrier;
    const auto workers = static_cast<size_t>(random.Between(1, 6));
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < workers; ++i) {
      ids.push_back(100 + i);
    }
    barrier.Begin(1, 1, ids);
    std::vector<uint32_t> come(workers, 0);
    std::map<uint64_t, uint32_t> told;
    const uint32_t barriers = 20;
    for (int i = 0;
         i < 100000 && (told.size() < workers ||
                        std::ranges::any_of(told, [&](auto& t) { return t.second < barriers; }));
         ++i) {
      const size_t worker = random.Below(workers);
      if (come[worker] < barriers && come[worker] <= told[ids[worker]] + 2) {
        ++come[worker];
      }
      if (random.Below(3) == 0) {
        continue;  // lost on its way
      }
      const uint32_t least = *std::ranges::min_element(come);
      const uint32_t said = come[worker] - std::min<uint32_t>(come[worker], random.Below(3));
      for (const LayerBarrier::Ring& ring : barrier.OnDoorbell(ids[worker], Bell(1, 1, said))) {
        ASSERT_LE(transport::BarrierCountOf(ring.immediate), least);
        if (random.Below(3) != 0) {
          uint32_t& known = told[ring.incarnation];
          known = std::max(known, transport::BarrierCountOf(ring.immediate));
        }
      }
    }
    for (const uint64_t id : ids) {
      EXPECT_EQ(told[id], barriers);
    }
  }
}

}  // namespace
}  // namespace shoal::server
