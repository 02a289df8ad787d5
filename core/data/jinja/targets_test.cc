#include "core/data/jinja/targets.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::jinja {
namespace {

Text Made(std::initializer_list<std::pair<const char*, int32_t>> parts) {
  Text text;
  for (const auto& [bytes, source] : parts) {
    text.Append(bytes, {.source = source});
  }
  return text;
}

// Finds each <...>, of which </...> stop.
std::vector<SpecialToken> Specials(const Text& text) {
  std::vector<SpecialToken> specials;
  for (const TextRange& span : TemplateSpans(text)) {
    for (size_t at = text.str().find('<', span.begin); at < span.end;
         at = text.str().find('<', at + 1)) {
      specials.push_back({{at, text.str().find('>', at) + 1}, text.str()[at + 1] == '/'});
    }
  }
  return specials;
}

std::string Says(const Text& text, int32_t source, std::string_view prompt) {
  const auto span = MessageSpan(
      text, source, Prompt::From(prompt, Specials(Text(std::string(prompt)))), Specials(text));
  return span.has_value() ? text.str().substr(span->begin, span->end - span->begin) : "none";
}

TEST(MessageSpan, ReachesFromThePromptThroughTheEndOfTheTurn) {
  const Text text = Made({{"<u>", 0},
                          {"Hi", 1},
                          {"</u><a>\n", 0},
                          {"Yes", 2},
                          {"</a></s>\n<u>", 0},
                          {"<a>\n", 3},
                          {"</u>", 0}});
  EXPECT_EQ(Says(text, 2, "<a>\n"), "Yes</a></s>");
  EXPECT_EQ(Says(text, 2, "<a>\n<think>"), "Yes</a></s>") << "as much of it as stands there";
  EXPECT_EQ(Says(text, 2, ""), "Yes</a></s>");
  EXPECT_EQ(Says(text, 4, "<a>\n"), "none");
}

TEST(MessageSpan, TakesWhatTheTemplateWritesBetweenPromptAndMessage) {
  const Text text =
      Made({{"<a>\n<think>\n\n</think>", 0}, {"Yes", 2}, {" (", 0}, {"now", 2}, {")</a>", 0}});
  EXPECT_EQ(Says(text, 2, "<a>\n"), "<think>\n\n</think>Yes (now)</a>");
  EXPECT_EQ(Says(text, 2, "<a>\n<think>\n\n</think>"), "Yes (now)</a>");
}

TEST(MessageSpan, PromptsInDataAreNone) {
  const Text text = Made({{"<u>", 0}, {"<a>", 1}, {"</u><a>", 0}, {"Yes", 2}, {"</a>", 0}});
  EXPECT_EQ(Says(text, 2, "<a>"), "Yes</a>");
  const Text bare = Made({{"<a>", 1}, {"Yes", 2}, {"</a>", 0}});
  EXPECT_EQ(Says(bare, 2, "<a>"), "Yes</a>");
}

TEST(MessageSpan, EndsWhereGenerationStops) {
  const Text text = Made({{"<a>", 0},
                          {"think", 2},
                          {"<b>", 0},
                          {"weather", 2},
                          {"</a>tool ", 0},
                          {"weather", 2},
                          {"<b>", 0},
                          {"9", 3},
                          {"</a>", 0}});
  EXPECT_EQ(Says(text, 2, "<a>"), "think<b>weather</a>");
}

TEST(MessageSpan, EndsBeforeOtherData) {
  const Text text = Made({{"A: ", 0}, {"Yes", 2}, {"\nU: ", 0}, {"More", 3}, {"</s>", 0}});
  EXPECT_EQ(Says(text, 2, "A:"), " Yes");
  EXPECT_EQ(Says(text, 3, "A:"), "More</s>");
}

TEST(MessageSpan, BeginsInsideNoSpecialToken) {
  const Text text = Made({{"<u>", 0}, {"Hi", 1}, {"</u><b>", 0}, {"Yes", 2}, {"</b>", 0}});
  EXPECT_EQ(Says(text, 2, "<a>\n"), "Yes</b>") << "two characters of it are no header";
  const Text more = Made({{"</u><a>say<b>", 0}, {"Yes", 2}, {"</b>", 0}});
  EXPECT_EQ(Says(more, 2, "<a>say<c>"), "<b>Yes</b>");
  const Text bare = Made({{"\nAnd:", 0}, {"Yes", 2}, {"</s>", 0}});
  EXPECT_EQ(Says(bare, 2, "\nAssistant:"), "Yes</s>");
}

TEST(MessageSpan, EndsWithTheTurnAfterACallOfATool) {
  const Text text =
      Made({{"<a>\n<call>", 0}, {"weather", 2}, {"<call/>\n</a>\n<u>", 0}, {"9", 3}, {"</u>", 0}});
  EXPECT_EQ(Says(text, 2, "<a>\n"), "<call>weather<call/>\n</a>");
  const Text data = Made({{"<a>", 0}, {"Yes", 2}, {"<b>", 0}, {"9", 3}, {"</a>", 0}});
  EXPECT_EQ(Says(data, 2, "<a>"), "Yes<b>") << "a stop behind other data is another's";
  const Text turns = Made({{"<a>", 0}, {"Yes", 2}, {"<b><a></a>", 0}});
  EXPECT_EQ(Says(turns, 2, "<a>"), "Yes<b>") << "nor is one behind a prompt its own";
}

TEST(MessageSpan, ItsReasoningMayHaveASourceOfItsOwn) {
  const Text text = Made({{"<a>\n(", 0}, {"Hm", -2}, {")", 0}, {"Yes", 2}, {"</a>", 0}});
  EXPECT_EQ(Says(text, 2, "<a>\n"), "(Hm)Yes</a>");
  EXPECT_EQ(text.str().substr(BehindReasoning(text, {4, text.size()})), ")Yes</a>");
  EXPECT_EQ(BehindReasoning(text, {8, text.size()}), 8u) << "none is within";
}

TEST(GenerationSpans, AreWhatWasMarked) {
  Text inner = Made({{"Yes", 2}, {"</s>", 0}});
  inner.MarkGeneration();
  Text text = Made({{"<a>", 0}});
  text.Append(inner);
  text.Append("\n");
  EXPECT_THAT(GenerationSpans(text), ::testing::ElementsAre(TextRange{3, 10}));
}

}  // namespace
}  // namespace shoal::jinja
