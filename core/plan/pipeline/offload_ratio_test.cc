// k and the byte model of PipeOffload, and the same for a schedule.
#include "core/plan/pipeline/offload_ratio.h"

#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

TEST(GptOffloadRatio, IsThePapersEquation) {
  EXPECT_NEAR(GptOffloadRatio(4096, 4096), 1.705, 1e-3);
  EXPECT_NEAR(GptOffloadRatio(8192, 4096), 0.918, 1e-3);
  for (const double hidden : {4096, 5120, 6144, 7168, 8192, 10240}) {
    for (const double sequence : {4096, 8192, 16384, 32768}) {
      EXPECT_NEAR(GptOffloadRatio(hidden, sequence),
                  10 / (3 * (6 * hidden + sequence)) * 220e12 / 15e9, 1e-9);
    }
  }
  // From this hidden size on everything can be offloaded at any length.
  EXPECT_LT(GptOffloadRatio(8149, 1), 1);
  EXPECT_GT(GptOffloadRatio(8147, 1), 1);
  // As measured, within 7 %.
  const double measured[6][4] = {{1.70, 1.46, 1.15, .80}, {1.40, 1.23, 1.00, .72},
                                 {1.19, 1.07, .88, .66},  {1.03, .94, .80, .61},
                                 {.92, .84, .72, .56},    {.74, .69, .61, .49}};
  const double hidden[6] = {4096, 5120, 6144, 7168, 8192, 10240};
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 4; ++j) {
      EXPECT_NEAR(GptOffloadRatio(hidden[i], 4096 << j) / measured[i][j], 1, 0.07);
    }
  }
}

TEST(GptLayerBytes, ThePapersFigures) {
  EXPECT_EQ(GptLayerBytes(Recompute::kNone), 34);
  EXPECT_EQ(GptLayerBytes(Recompute::kLight), 20);
  EXPECT_EQ(GptLayerBytes(Recompute::kLight, 8.0 / 64), 16.5);
  // Recompute frees 40.1 to 43.8 % of the memory in the paper's runs.
  EXPECT_NEAR(1 - GptLayerBytes(Recompute::kLight) / GptLayerBytes(Recompute::kNone), 0.412, 1e-3);
  EXPECT_NEAR(1 - GptLayerBytes(Recompute::kLight, 0.125) / GptLayerBytes(Recompute::kNone, 0.125),
              0.459, 1e-3);
  // 42.9B: 64 layers' worth of one microbatch; the paper gives 34 GB.
  EXPECT_NEAR(64 * GptLayerBytes(Recompute::kLight, 0.125) * 4096 * 8192, 35.4e9, 0.05e9);
}

TEST(OffloadRatio, IsTheCopiesOfTheStageThatHasMostOfThem) {
  const ScheduleShape shape{.stages = 2, .chunks = 2, .microbatches = 3};
  ScheduleCosts costs(shape, {.offload = 0.5, .reload = 1});
  EXPECT_DOUBLE_EQ(OffloadRatio(shape, costs), 0.5);
  costs.Of(1, 1, 2).reload = 10;
  EXPECT_DOUBLE_EQ(OffloadRatio(shape, costs), (6 * 1.5 + 9) / 18);
}

}  // namespace
}  // namespace shoal::plan
