#include "server/service/meeting.h"

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
  return transport::MeetingDoorbell(transport::MeetingTag(step, attempt), count);
}

TEST(Meeting, EndsWhenTheLastHasCome) {
  Meeting meeting;
  EXPECT_THAT(meeting.Begin(4, 1, {10, 20, 30}), IsEmpty());
  EXPECT_THAT(meeting.OnDoorbell(10, Bell(4, 1, 1)), IsEmpty());
  EXPECT_THAT(meeting.OnDoorbell(30, Bell(4, 1, 3)), IsEmpty());
  EXPECT_THAT(
      meeting.OnDoorbell(20, Bell(4, 1, 1)),
      UnorderedElementsAre(Meeting::Ring{10, Bell(4, 1, 1)}, Meeting::Ring{20, Bell(4, 1, 1)},
                           Meeting::Ring{30, Bell(4, 1, 1)}));
  // One that says nothing new (its answer may have been lost) is answered alone.
  EXPECT_THAT(meeting.OnDoorbell(20, Bell(4, 1, 1)), ElementsAre(Meeting::Ring{20, Bell(4, 1, 1)}));
}

TEST(Meeting, IgnoresStrangersAndOtherAttempts) {
  Meeting meeting;
  meeting.Begin(4, 2, {10, 20});
  EXPECT_THAT(meeting.OnDoorbell(99, Bell(4, 2, 1)), IsEmpty());
  EXPECT_THAT(meeting.OnDoorbell(10, Bell(4, 1, 7)), IsEmpty());
  EXPECT_THAT(meeting.OnDoorbell(10, Bell(5, 1, 7)), IsEmpty());
  meeting.OnDoorbell(10, Bell(4, 2, 1));
  EXPECT_THAT(meeting.OnDoorbell(20, Bell(4, 2, 1)).size(), 2U);
}

TEST(Meeting, ANewAttemptTellsThoseWhoWait) {
  Meeting meeting;
  meeting.Begin(4, 1, {10, 20});
  meeting.OnDoorbell(10, Bell(4, 1, 1));
  EXPECT_THAT(meeting.Begin(4, 2, {10, 20}),
              ElementsAre(Meeting::Ring{10, Bell(4, 2, 0)}, Meeting::Ring{20, Bell(4, 2, 0)}));
  EXPECT_THAT(meeting.OnDoorbell(10, Bell(4, 2, 1)), IsEmpty());
}

// Doorbells lost, repeated and late: nobody is told of a meeting that somebody has not come to, and
// in the end all are told of all.
TEST(Meeting, SurvivesLostAndRepeatedDoorbells) {
  Random random(5);
  for (int round = 0; round < 50; ++round) {
    Meeting meeting;
    const auto workers = static_cast<size_t>(random.Between(1, 6));
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < workers; ++i) {
      ids.push_back(100 + i);
    }
    meeting.Begin(1, 1, ids);
    std::vector<uint32_t> come(workers, 0);
    std::map<uint64_t, uint32_t> told;
    const uint32_t meetings = 20;
    for (int i = 0;
         i < 100000 && (told.size() < workers ||
                        std::ranges::any_of(told, [&](auto& t) { return t.second < meetings; }));
         ++i) {
      const size_t worker = random.Below(workers);
      if (come[worker] < meetings && come[worker] <= told[ids[worker]] + 2) {
        ++come[worker];
      }
      if (random.Below(3) == 0) {
        continue;  // lost on the way there
      }
      const uint32_t least = *std::ranges::min_element(come);
      const uint32_t said = come[worker] - std::min<uint32_t>(come[worker], random.Below(3));
      for (const Meeting::Ring& ring : meeting.OnDoorbell(ids[worker], Bell(1, 1, said))) {
        ASSERT_LE(transport::MeetingCountOf(ring.immediate), least);
        if (random.Below(3) != 0) {
          uint32_t& known = told[ring.incarnation];
          known = std::max(known, transport::MeetingCountOf(ring.immediate));
        }
      }
    }
    for (const uint64_t id : ids) {
      EXPECT_EQ(told[id], meetings);
    }
  }
}

}  // namespace
}  // namespace shoal::server
