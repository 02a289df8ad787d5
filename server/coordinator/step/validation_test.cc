#include "server/coordinator/step/validation.h"

#include "gtest/gtest.h"

namespace shoal::server {
namespace {

std::optional<proto::ValidationEvent> After(const std::vector<double>& losses,
                                            double minimum_change = 0) {
  std::optional<proto::ValidationEvent> newest;
  int64_t step = 0;
  for (const double loss : losses) {
    proto::ValidationEvent result;
    result.set_step(step += 10);
    result.set_loss(loss);
    Judge(newest, minimum_change, result);
    newest = result;
  }
  return newest;
}

TEST(Judge, TheLowestIsTheBest) {
  EXPECT_EQ(After({3})->best_step(), 10);
  const proto::ValidationEvent newest = *After({3, 2, 2, 2.5});
  EXPECT_EQ(newest.best_step(), 20) << "of two alike the first";
  EXPECT_EQ(newest.best_loss(), 2);
  EXPECT_EQ(newest.since_best(), 2);
  EXPECT_EQ(After({3, 2, 2, 2.5, 1.5})->since_best(), 0);
}

TEST(Judge, LittleBetterIsNotBetter) {
  EXPECT_EQ(After({3, 2.75}, 0.5)->best_step(), 20);
  EXPECT_EQ(After({3, 2.75}, 0.5)->since_best(), 1);
  EXPECT_EQ(After({3, 2.75, 2.25}, 0.5)->since_best(), 2) << "than the lowest so far";
  EXPECT_EQ(After({3, 2.75, 2.25}, 0.5)->best_step(), 30);
}

TEST(EndsEarly, OnceSoManyHaveBroughtNothingBetter) {
  EXPECT_FALSE(EndsEarly(std::nullopt, {.patience = 1}));
  EXPECT_FALSE(EndsEarly(After({3, 4, 5}), {.patience = 0}));
  EXPECT_FALSE(EndsEarly(After({3, 4, 5}), {.patience = 3}));
  EXPECT_TRUE(EndsEarly(After({3, 4, 5}), {.patience = 2}));
}

}  // namespace
}  // namespace shoal::server
