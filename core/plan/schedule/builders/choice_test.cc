#include "core/plan/schedule/builders/choice.h"

#include "core/base/status.h"
#include "core/plan/schedule/schedule_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::HasSubstr;

TEST(ScheduleChoice, EveryNameIsReadBack) {
  for (const char* name : {"GPipe", "1F1B", "interleaved", "GIS", "GIS(4)", "GIS(17)", "GIS-H",
                           "PO", "ZB-H1", "ZB-H2", "ZB-V", "V-Half", "V-Min", "accumulation"}) {
    const auto choice = ParseScheduleName(name);
    ASSERT_TRUE(choice.ok()) << Describe(choice.status());
    EXPECT_EQ(ToString(*choice), name);
  }
  EXPECT_EQ(*ParseScheduleName("gis-h"), (ScheduleChoice{.kind = ScheduleKind::kGroupedHalf}));
  EXPECT_EQ(*ParseScheduleName("gis(3)"), (ScheduleChoice{ScheduleKind::kGrouped, 3}));
}

TEST(ScheduleChoice, OtherNamesAreRefused) {
  for (const char* name : {"", "GIS(", "GIS()", "GIS(0)", "GIS(-2)", "GIS(2", "GIS(2x)", "PO-H",
                           "1F1B ", "auto", "GIS(99999999999)"}) {
    const auto choice = ParseScheduleName(name);
    EXPECT_FALSE(choice.ok()) << name;
    EXPECT_THAT(Describe(choice.status()), HasSubstr("there are GPipe, 1F1B, ")) << name;
  }
}

TEST(ScheduleChoice, ShapesThatAScheduleIsNotMadeForAreRefused) {
  const auto error = [](const char* name, int stages, int chunks) {
    return Describe(CheckChoice(*ParseScheduleName(name), stages, chunks));
  };
  EXPECT_THAT(error("1F1B", 4, 2), HasSubstr("1F1B has one chunk for each stage, not 2"));
  EXPECT_THAT(error("V-Min", 4, 1), HasSubstr("two chunks"));
  EXPECT_THAT(error("accumulation", 2, 4), HasSubstr("is for one stage"));
  EXPECT_THAT(error("GIS(2)", 5, 2), HasSubstr("5 stages take groups of 3 to 5 microbatches"));
  EXPECT_THAT(error("PO", 0, 2), HasSubstr("0 stages of 2 chunks"));
  EXPECT_TRUE(CheckChoice(*ParseScheduleName("GIS(3)"), 5, 2).ok());
}

TEST(ScheduleChoice, BuildsWhatItNames) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      int built = 0;
      for (const char* name : {"GPipe", "1F1B", "interleaved", "GIS", "GIS(3)", "GIS-H", "PO",
                               "ZB-H1", "ZB-H2", "ZB-V", "V-Half", "V-Min", "accumulation"}) {
        const ScheduleChoice choice = *ParseScheduleName(name);
        if (!CheckChoice(choice, stages, chunks).ok()) {
          continue;
        }
        const Schedule schedule = BuildSchedule(choice, stages, chunks, 7);
        EXPECT_TRUE(CheckSchedule(schedule).ok()) << name;
        EXPECT_EQ(schedule.shape, (ScheduleShape{stages, chunks, 7, PlacementOf(choice)}));
        ++built;
      }
      EXPECT_GE(built, 5);
    }
  }
  EXPECT_EQ(BuildSchedule(*ParseScheduleName("GIS(3)"), 4, 2, 8).name, "GIS(3)");
  EXPECT_EQ(PeakActivations(GradientAccumulation(5, 3).stages[0]), 5);
}

}  // namespace
}  // namespace shoal::plan
