// Tests the checks themselves: the CPU's operators agree with themselves, and errors are found.
#include "worker/ops/testing/check_ops.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/ops/cpu/cpu_ops.h"

namespace shoal::worker {
namespace {

class CheckOpsTest : public testing::Test {
 protected:
  OpCheck CheckZero(const OpChecker::Operator& op, ArrayLayout layout = {}) {
    OpChecker checker(*device_, *ops_, *oracle_, 1);
    CheckedArray out = checker.Output(DType::kF32, 3, 4, layout);
    checker.Check("Zero", 1e-3, {&out}, [&](Ops& ops, OpSide s) {
      ops.Zero(out.matrix(s));
      if (s == OpSide::kUnderTest) {
        under_test_ = out.matrix(s);
        op(ops, s);
      }
    });
    return checker.TakeResults().at(0);
  }

  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::unique_ptr<Ops> ops_ = MakeCpuOps(*device_, 1);
  std::unique_ptr<Ops> oracle_ = MakeCpuOps(*device_, 2);
  Matrix under_test_;
};

TEST_F(CheckOpsTest, TheOracleAgreesWithItself) {
  const std::vector<OpCheck> checks = CheckOps(*device_, *ops_, *oracle_, 7, CheckScale::kSmall);
  EXPECT_GT(checks.size(), 150u);
  for (const OpCheck& check : checks) {
    EXPECT_TRUE(check.passed()) << check.name << ": " << check.error << ", " << check.wrong;
  }
}

TEST_F(CheckOpsTest, WhatIsRightPasses) {
  const OpCheck check = CheckZero([](Ops&, OpSide) {});
  EXPECT_TRUE(check.passed());
  EXPECT_EQ(check.error, 0);
}

TEST_F(CheckOpsTest, WhatIsNotWrittenIsSeen) {
  const OpCheck check = CheckZero(
      [&](Ops&, OpSide) { std::memset(under_test_.row<float>(2) + 1, 0xFF, sizeof(float)); });
  EXPECT_THAT(check.wrong, testing::HasSubstr("element [2, 1] is"));
}

TEST_F(CheckOpsTest, ErrorsAreRelativeToWhatIsTypical) {
  const OpCheck check = CheckZero([&](Ops&, OpSide) { *under_test_.row<float>(1) = 0.5f; });
  EXPECT_TRUE(check.wrong.empty());
  EXPECT_FALSE(check.passed());
}

TEST_F(CheckOpsTest, WritesOutsideOfTheMatrixAreSeen) {
  for (const ArrayLayout layout : {ArrayLayout{.padding = 2}, ArrayLayout{.offset = 2}}) {
    const OpCheck check = CheckZero(
        [&](Ops&, OpSide) { under_test_.row<float>(0)[layout.padding > 0 ? 5 : -1] = 1; }, layout);
    EXPECT_THAT(check.wrong, testing::HasSubstr("outside of the matrix"));
  }
}

TEST_F(CheckOpsTest, RunsThatDifferAreSeen) {
  float value = 0;
  const OpCheck check = CheckZero([&](Ops&, OpSide) {
    *under_test_.row<float>(1) = value;
    value += 1e-30f;
  });
  EXPECT_THAT(check.wrong, testing::HasSubstr("different bits"));
}

}  // namespace
}  // namespace shoal::worker
