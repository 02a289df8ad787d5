#include "cli/terminal/terminal.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

TEST(Terminal, ColourOnlyOnATerminalThatWantsIt) {
  EXPECT_TRUE(DescribeTerminal(true, 100, nullptr, "xterm").colour);
  EXPECT_TRUE(DescribeTerminal(true, 100, "", "xterm").colour)
      << "an empty NO_COLOR is as if it were not set";
  EXPECT_FALSE(DescribeTerminal(true, 100, "1", "xterm").colour);
  EXPECT_TRUE(DescribeTerminal(true, 100, "1", "xterm").interactive)
      << "NO_COLOR forbids colour, not a bar";
  EXPECT_FALSE(DescribeTerminal(false, 100, nullptr, "xterm").colour);
  EXPECT_FALSE(DescribeTerminal(true, 100, nullptr, "dumb").interactive);
  EXPECT_FALSE(DescribeTerminal(true, 100, nullptr, nullptr).interactive);
}

TEST(Terminal, WidthIsBoundedAndHasADefault) {
  EXPECT_EQ(DescribeTerminal(true, 100, nullptr, "xterm").width, 100);
  EXPECT_EQ(DescribeTerminal(false, 0, nullptr, nullptr).width, 80);
  EXPECT_EQ(DescribeTerminal(true, 5000, nullptr, "xterm").width, 160);
}

TEST(Terminal, PaintsOnlyWithColour) {
  EXPECT_EQ(Paint({.colour = false}, Colour::kRed, "x"), "x");
  EXPECT_EQ(Paint({.colour = true}, Colour::kRed, "x"), "\033[31mx\033[0m");
}

TEST(Terminal, ShortensByCodePoints) {
  EXPECT_EQ(Shorten("hello", 5), "hello");
  EXPECT_EQ(Shorten("hello world", 8), "hello...");
  EXPECT_EQ(Shorten("\xC3\xA4\xC3\xB6\xC3\xBC\xC3\xA4\xC3\xB6", 4), "\xC3\xA4...")
      << "never inside a code point";
  EXPECT_EQ(Shorten("hello", 2), "..");
  EXPECT_EQ(Shorten("hello", 0), "");
}

TEST(Terminal, ControlCharactersCannotReachTheScreen) {
  EXPECT_EQ(MakePrintable("a\nb\033[2J\x7F"), "a\\nb\\x1b[2J\\x7f");
}

TEST(Table, AlignsColumnsAndTrimsLineEnds) {
  Table table({{"name"}, {"bytes", Table::Align::kRight}, {"note"}});
  table.Add({"a", "1", "first"});
  table.Add({"long name", "12345", ""});
  EXPECT_EQ(table.Render({}),
            "name       bytes  note\n"
            "a              1  first\n"
            "long name  12345\n");
}

TEST(Format, Thousands) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(1234567), "1,234,567");
  EXPECT_EQ(WithThousands(-100000), "-100,000");
}

TEST(Format, Seconds) {
  EXPECT_EQ(FormatSeconds(1.25), "1.2s");
  EXPECT_EQ(FormatSeconds(42.4), "42s");
  EXPECT_EQ(FormatSeconds(75), "1m15s");
  EXPECT_EQ(FormatSeconds(3700), "1h01m");
  EXPECT_EQ(FormatSeconds(-1), "?");
}

TEST(Format, Mfu) {
  EXPECT_EQ(FormatMfu(0.412), ", mfu 41%");
  EXPECT_EQ(FormatMfu(0), "");
}

}  // namespace
}  // namespace shoal::cli
