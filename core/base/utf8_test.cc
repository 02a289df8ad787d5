#include "core/base/utf8.h"

#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(Utf8, FindsTheFirstByteThatIsNot) {
  EXPECT_EQ(FirstInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\x9F"), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("ab\xFF"), 2U);
  EXPECT_EQ(FirstInvalidUtf8("\xC0\x80"), 0U) << "overlong";
  EXPECT_EQ(FirstInvalidUtf8("a\xED\xA0\x80"), 1U) << "a surrogate";
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x90\x80\x80"), 0U) << "above U+10FFFF";
  EXPECT_EQ(FirstInvalidUtf8("a\xE2\x82"), 1U) << "cut off";
}

TEST(Utf8, EveryCharacterComesBack) {
  for (char32_t character = 0; character <= 0x10FFFF; ++character) {
    if (character >= 0xD800 && character < 0xE000) {
      continue;
    }
    std::string text = "x";
    AppendUtf8(character, text);
    ASSERT_EQ(FirstInvalidUtf8(text), std::nullopt) << static_cast<uint32_t>(character);
    ASSERT_EQ(LastCharacter(text), character);
    ASSERT_EQ(LastCharacterStart(text), 1U);
    ASSERT_EQ(CharacterLength(text[1]), text.size() - 1);
    ASSERT_EQ(FirstCharacter(std::string_view(text).substr(1)), character);
  }
}

TEST(Utf8, ReplacesOnePerMaximalPart) {
  EXPECT_EQ(LossyUtf8("a\xE2\x82z"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(LossyUtf8("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(LossyUtf8("\xC3\xA9"), "\xC3\xA9");
  const auto replaced = [](std::string_view bytes) { return LossyUtf8(bytes).size() / 3; };
  EXPECT_EQ(replaced("\xE0\xA0"), 1U);
  EXPECT_EQ(replaced("\xE0\x80"), 2U) << "overlong";
  EXPECT_EQ(replaced("\xED\x9F"), 1U);
  EXPECT_EQ(replaced("\xF0\x90\x80"), 1U);
  EXPECT_EQ(replaced("\xF0\x8F\x80"), 3U) << "overlong";
  EXPECT_EQ(replaced("\xF4\x8F\xBF"), 1U);
  EXPECT_EQ(replaced("\xF4\x90\x80"), 3U) << "above U+10FFFF";
  EXPECT_EQ(replaced("\xF5\x80"), 2U);
}

}  // namespace
}  // namespace shoal
