#include "core/rpc/log_lines.h"

#include <string>

#include "core/base/kept_lines.h"
#include "core/base/utf8.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

// Else the call that carries it could not be read, and the member would end.
TEST(AddLogLines, WhateverALineHoldsItTravelsAsUtf8) {
  ProcessLines().Take();
  ProcessLines().Add({.message = "from the network: \xff"});
  std::string cut(KeptLines::kMaxBytes - 1, 'x');
  cut += "\u00e9";
  ProcessLines().Add({.message = cut});
  proto::NewLines lines;
  AddLogLines(lines);
  ASSERT_EQ(lines.lines_size(), 2);
  for (const proto::LogLine& line : lines.lines()) {
    EXPECT_EQ(FirstInvalidUtf8(line.message()), std::nullopt) << line.message();
  }
  EXPECT_EQ(lines.lines(0).message(), "from the network: \xEF\xBF\xBD");
  proto::NewLines read;
  EXPECT_TRUE(read.ParseFromString(lines.SerializeAsString()));
}

}  // namespace
}  // namespace shoal::rpc
