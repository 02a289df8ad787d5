#include "worker/data/lengths.h"

#include <algorithm>
#include <vector>

#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

double Quantile(std::string_view form, double q) {
  const auto lengths = LengthDistribution::Parse(form).value();
  Random random(5);
  std::vector<int64_t> draws(20'000);
  for (int64_t& draw : draws) {
    draw = lengths.Draw(random);
    EXPECT_GE(draw, lengths.low());
    EXPECT_LE(draw, lengths.high());
  }
  std::sort(draws.begin(), draws.end());
  return static_cast<double>(draws[static_cast<size_t>(q * static_cast<double>(draws.size()))]);
}

TEST(LengthsTest, NamedOnesHaveTheirQuantiles) {
  struct Expected {
    const char* form;
    double p10, p50, p90, p99;
  };
  for (const Expected& e : {Expected{"longalign", 5100, 13100, 32900, 56700},
                            Expected{"swe-smith", 12400, 28600, 65000, 109000},
                            Expected{"aime", 3800, 8000, 16000, 22500}}) {
    SCOPED_TRACE(e.form);
    EXPECT_NEAR(Quantile(e.form, 0.10) / e.p10, 1, 0.05);
    EXPECT_NEAR(Quantile(e.form, 0.50) / e.p50, 1, 0.05);
    EXPECT_NEAR(Quantile(e.form, 0.90) / e.p90, 1, 0.05);
    EXPECT_NEAR(Quantile(e.form, 0.99) / e.p99, 1, 0.05);
  }
  EXPECT_NEAR(Quantile("longalign:0.01", 0.5) / 131, 1, 0.05);
}

TEST(LengthsTest, OtherForms) {
  EXPECT_NEAR(Quantile("uniform:10:20", 0.5), 15, 1);
  EXPECT_EQ(Quantile("uniform:7:7", 0.5), 7);
  EXPECT_NEAR(Quantile("lognormal:4:0.5:1:1000", 0.5) / 54.6, 1, 0.05);
  EXPECT_EQ(Quantile("lognormal:0:0:5:10", 0.5), 5);  // never within its limits: the nearest one
  EXPECT_EQ(Quantile("lognormal:100:0:5:10", 0.5), 10);
}

TEST(LengthsTest, RefusesNonsense) {
  for (const char* form :
       {"", "uniform", "uniform:5", "uniform:9:3", "uniform:0:3", "uniform:a:b", "lognormal:1:2:3",
        "lognormal:1:-1:3:4", "longalign:0", "longalign:-1", "longalign:1:2", "pareto:1",
        "uniform:1:1e30", "uniform:nan:5", "lognormal:inf:1:1:5"}) {
    const auto lengths = LengthDistribution::Parse(form);
    ASSERT_FALSE(lengths.ok()) << form;
    EXPECT_THAT(std::string(Message(lengths.status())),
                HasSubstr(fmt::format("lengths '{}'", form)));
  }
}

}  // namespace
}  // namespace shoal::worker
