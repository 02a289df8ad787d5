#include "core/data/pairs/pair.h"

#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;
using Messages = std::vector<ChatMessage>;

Messages List(std::vector<std::pair<Role, std::string>> of) {
  Messages messages;
  for (auto& [role, content] : of) {
    messages.push_back({role, content});
  }
  return messages;
}

// "user: Hi | assistant: Hello", with a * behind what is not learnt.
std::string Shown(const Messages& messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += fmt::format("{}{}: {}{}", text.empty() ? "" : " | ", Name(message.role),
                        message.content, message.weight == 0 ? "*" : "");
  }
  return text;
}
std::string Shown(const absl::StatusOr<Pair>& pair) {
  return pair.ok() ? Shown(pair->chosen) + " / " + Shown(pair->rejected)
                   : std::string(pair.status().message());
}

const Messages kUser = List({{Role::kUser, "Hi"}});
const Messages kGood = List({{Role::kAssistant, "Hello"}});
const Messages kBad = List({{Role::kAssistant, "Go"}});

Messages operator+(Messages one, const Messages& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

TEST(PairOf, TakesEveryShape) {
  const std::string expected = "user: Hi* | assistant: Hello / user: Hi* | assistant: Go";
  EXPECT_EQ(Shown(PairOf({"Hi", "Hello", "Go"})), expected);
  EXPECT_EQ(Shown(PairOf({kUser, kGood, kBad})), expected);
  EXPECT_EQ(Shown(PairOf({"Hi", kGood, kBad})), expected);
  EXPECT_EQ(Shown(PairOf({kUser, "Hello", "Go"})), expected);
  EXPECT_EQ(Shown(PairOf({std::nullopt, kUser + kGood, kUser + kBad})), expected);
  EXPECT_EQ(Shown(PairOf({"Hi", kUser + kGood, kUser + kBad})), expected)
      << "the prompt is in the lists, too";
  EXPECT_EQ(Shown(PairOf({std::nullopt, "The sky is blue", "The sky is green"})),
            "user: The sky is* | assistant:  blue / user: The sky is* | assistant:  green");
}

TEST(PairOf, RepliesOfThePromptAreNotLearnt) {
  const Messages prompt = kUser + kGood + kUser;
  EXPECT_EQ(Shown(PairOf({std::nullopt, prompt + kGood, prompt + kBad})),
            "user: Hi* | assistant: Hello* | user: Hi* | assistant: Hello / "
            "user: Hi* | assistant: Hello* | user: Hi* | assistant: Go");
  EXPECT_EQ(Shown(PairOf({kUser, kGood + kUser + kGood, kGood + kUser + kBad})),
            "user: Hi* | assistant: Hello | user: Hi | assistant: Hello / "
            "user: Hi* | assistant: Hello | user: Hi | assistant: Go")
      << "what is beside the prompt is";
}

TEST(PairOf, ACharacterIsNotCut) {
  // Of two letters that begin with the same byte.
  EXPECT_EQ(Shown(PairOf({std::nullopt, "a\xC3\xA4", "a\xC3\xB6"})),
            "user: a* | assistant: \xC3\xA4 / user: a* | assistant: \xC3\xB6");
}

TEST(PairOf, RefusesWhatIsNoPair) {
  EXPECT_THAT(Shown(PairOf({"Hi", "Hello", "Hello"})), HasSubstr("chosen and rejected are equal"));
  EXPECT_THAT(Shown(PairOf({"Hi", kGood, kGood})), HasSubstr("chosen and rejected are equal"));
  EXPECT_THAT(Shown(PairOf({"Hi", "Hello", kBad})), HasSubstr("are not both texts, or both lists"));
  EXPECT_THAT(Shown(PairOf({std::nullopt, "Hello", "Go"})), HasSubstr("give a prompt"));
  EXPECT_THAT(Shown(PairOf({std::nullopt, kUser + kGood, kUser})),
              HasSubstr("rejected has no message of the assistant behind the prompt"));
  EXPECT_THAT(Shown(PairOf({kUser, kUser, kBad})),
              HasSubstr("chosen has no message of the assistant"));
}

}  // namespace
}  // namespace shoal::worker
