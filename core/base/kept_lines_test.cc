#include "core/base/kept_lines.h"

#include "fmt/format.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(KeptLines, AreTakenOnceInOrder) {
  KeptLines lines;
  lines.Add({.level = "info", .message = "one"});
  lines.Add({.level = "error", .message = "two"});
  const std::vector<KeptLine> taken = lines.Take();
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].message, "one");
  EXPECT_EQ(taken[1].level, "error");
  EXPECT_TRUE(lines.Take().empty());
}

TEST(KeptLines, AreBoundedAndSayWhatWasDropped) {
  KeptLines lines;
  for (size_t i = 0; i < KeptLines::kMaxLines + 7; ++i) {
    lines.Add({.message = fmt::format("line {}", i)});
  }
  const std::vector<KeptLine> taken = lines.Take();
  ASSERT_EQ(taken.size(), KeptLines::kMaxLines + 1);
  EXPECT_EQ(taken[0].message, "7 lines before this found no room");
  EXPECT_EQ(taken[1].message, "line 7");

  lines.Add({.message = std::string(10 * KeptLines::kMaxBytes, 'x')});
  EXPECT_EQ(lines.Take().at(0).message.size(), KeptLines::kMaxBytes);
}

}  // namespace
}  // namespace shoal
