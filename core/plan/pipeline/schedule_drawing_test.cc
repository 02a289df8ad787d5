#include "core/plan/pipeline/schedule_drawing.h"

#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/offload.h"
#include "core/plan/schedule/schedule_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

std::string Draw(const Schedule& schedule, const ScheduleCosts& costs,
                 const ScheduleDrawingOptions& options = {}) {
  const auto times = SimulateSchedule(schedule, costs);
  EXPECT_TRUE(times.ok()) << times.status();
  return DrawSchedule(schedule, *times, options);
}

TEST(ScheduleDrawing, EveryComputeActionIsACellOfItsOwn) {
  const Schedule schedule = OneForwardOneBackward(3, 4);
  const std::string svg = Draw(schedule, ScheduleCosts(schedule.shape, {}));
  EXPECT_EQ(Count(svg, "<title>forward chunk 0 microbatch"), 12u);
  EXPECT_EQ(Count(svg, "<title>backward chunk 0 microbatch"), 12u);
  EXPECT_THAT(svg, HasSubstr("3 stages x 1 chunks, 4 microbatches"));
  EXPECT_THAT(svg, HasSubstr(">stage 2<"));
  EXPECT_THAT(svg, Not(HasSubstr(">offload<")));  // the legend omits what is not there
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(ScheduleDrawing, CopiesHaveATrackAndALegend) {
  const ScheduleShape shape = {.stages = 4, .chunks = 4, .microbatches = 8};
  const ScheduleCosts costs(shape, {.offload = 0.2, .reload = 0.2, .offload_bytes = 1});
  const auto offloaded =
      AddOffloads(UniformPipe(4, 4, 8), costs, FirstChunks(shape, 2), CopyStreams());
  ASSERT_TRUE(offloaded.ok()) << offloaded.status();
  ASSERT_GT(offloaded->offloaded, 0);
  const std::string svg = Draw(offloaded->schedule, costs);
  EXPECT_EQ(Count(svg, "<title>offload chunk"), static_cast<size_t>(offloaded->offloaded));
  EXPECT_EQ(Count(svg, "<title>reload chunk"), static_cast<size_t>(offloaded->offloaded));
  EXPECT_THAT(svg, HasSubstr(">offload<"));
}

TEST(ScheduleDrawing, OfALongScheduleTheBeginningIsDrawnAndSaidToBe) {
  const Schedule schedule = OneForwardOneBackward(4, 100);
  const std::string svg =
      Draw(schedule, ScheduleCosts(schedule.shape, {}), {.time_unit = "s", .max_spans = 100});
  EXPECT_THAT(svg, HasSubstr("the first "));
  const size_t cells = Count(svg, "<title>forward") + Count(svg, "<title>backward");
  EXPECT_LE(cells, 104u);
  EXPECT_GE(cells, 90u);
}

}  // namespace
}  // namespace shoal::plan
