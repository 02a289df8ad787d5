#include "core/base/bytes.h"

#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(ParseBytes, TakesWhatPeopleWrite) {
  EXPECT_EQ(*ParseBytes("512"), 512);
  EXPECT_EQ(*ParseBytes("4MiB"), 4 * kMiB);
  EXPECT_EQ(*ParseBytes("1.5 GiB"), 3 * kGiB / 2);
  EXPECT_EQ(*ParseBytes("2KB"), 2000);
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text : {"", "MiB", "-4", "4 apples", "1e30GiB", "nan", "4MiBx"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(FormatBytes, IsReadable) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(4 * kMiB), "4.0 MiB");
}

}  // namespace
}  // namespace shoal
