#include "core/data/answer.h"

#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

TEST(AnswerTest, ComparesExactlyButForOuterSpace) {
  EXPECT_TRUE(CheckAnswer("3 + 4 = 7", " 3 + 4 = 7\n"));
  EXPECT_FALSE(CheckAnswer("3 + 4 = 7", "3 + 4 = 8"));
  EXPECT_FALSE(CheckAnswer("7", "77"));
  EXPECT_TRUE(CheckAnswer("", ""));
}

TEST(AnswerTest, KnowsGsm8kMarks) {
  const char* reference = "He sold 24 clips.\n#### 1,200";
  EXPECT_TRUE(CheckAnswer(reference, "Something else.\n#### 1200"));
  EXPECT_TRUE(CheckAnswer(reference, "#### 7\n#### $1200.0"));
  EXPECT_TRUE(CheckAnswer(reference, "#### 1200.\nmore"));
  EXPECT_FALSE(CheckAnswer(reference, "#### 120"));
  EXPECT_FALSE(CheckAnswer(reference, "1200"));
  EXPECT_FALSE(CheckAnswer(reference, ""));
}

TEST(AnswerTest, FindsWhatToCompareWith) {
  EXPECT_EQ(ReferenceAnswer({.messages = {{Role::kAssistant, "x"}}, .answer = "y"}), "y");
  EXPECT_EQ(ReferenceAnswer({.messages = {{Role::kAssistant, "x\n#### 4"}}}), "x\n#### 4");
  EXPECT_EQ(ReferenceAnswer({.messages = {{Role::kAssistant, "x"}}}), std::nullopt);
  EXPECT_EQ(ReferenceAnswer({.messages = {{Role::kUser, "x\n#### 4"}}}), std::nullopt);
}

}  // namespace
}  // namespace shoal::worker
