#include "core/data/synthetic/synth.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/data/answer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

// Solves a conversation's questions the slow way and compares: every turn of the assistant must be
// right.
class Solver {
 public:
  std::string Answer(const std::string& question) {
    std::istringstream in(question);
    std::string word;
    in >> word;
    if (word == "Sort") {
      std::vector<int> digits;
      for (int digit = 0; in >> digit;) {
        digits.push_back(digit);
      }
      std::sort(digits.begin(), digits.end());
      std::string text;
      for (const int digit : digits) {
        text += fmt::format("{}{}", text.empty() ? "" : " ", digit);
      }
      return text;
    }
    if (word == "What" || word == "Now") {
      int operand = 0;
      char sign = '+';
      if (word == "What") {
        in >> word >> total_ >> sign >> operand;
      } else {
        in >> word >> operand;
        sign = word == "add" ? '+' : '-';
      }
      const int before = total_;
      total_ += sign == '+' ? operand : -operand;
      return fmt::format("{} {} {} = {}", before, sign, operand, total_);
    }
    if (word != "Who" && word != "How") {
      facts_.clear();
      while (word != "Who" && word != "How") {
        std::string has, thing;
        int count = 0;
        in >> has >> count >> thing;
        facts_.push_back({word, count, thing.substr(0, thing.size() - 1)});
        in >> word;
      }
    }
    std::string thing, skipped;
    in >> skipped >> thing;
    thing.pop_back();
    for (const Fact& fact : facts_) {
      if (fact.thing == thing) {
        return word == "Who" ? fact.name : fmt::format("{} {}", fact.count, fact.thing);
      }
    }
    return "?";
  }

 private:
  struct Fact {
    std::string name;
    int count;
    std::string thing;
  };
  int total_ = 0;
  std::vector<Fact> facts_;
};

TEST(SynthTest, AnswersAreRight) {
  for (const SynthKind kind :
       {SynthKind::kArithmetic, SynthKind::kSort, SynthKind::kExtract, SynthKind::kMixed}) {
    const SynthOptions options{.kind = kind, .seed = 11};
    for (int64_t i = 0; i < 300; ++i) {
      const SynthSample sample = MakeSynthSample(options, i);
      Solver solver;
      for (size_t m = 0; m < sample.messages.size(); m += 2) {
        ASSERT_EQ(sample.messages[m].role, Role::kUser);
        ASSERT_EQ(sample.messages[m + 1].role, Role::kAssistant);
        ASSERT_EQ(solver.Answer(sample.messages[m].content), sample.messages[m + 1].content)
            << sample.messages[m].content;
      }
      EXPECT_TRUE(CheckAnswer(sample.answer, sample.messages.back().content));
    }
  }
}

TEST(SynthTest, LinesReadBack) {
  const SynthSample sample = MakeSynthSample({}, 3);
  const JsonlSample read = ParseJsonlLine(ToJsonLine(sample), {}, "f:1").value();
  EXPECT_EQ(read.messages, sample.messages);
  EXPECT_EQ(ReferenceAnswer(read), sample.answer);
}

TEST(SynthTest, SeedsDecide) {
  const auto lines = [](uint64_t seed) {
    std::string text;
    for (int64_t i = 0; i < 50; ++i) {
      text += ToJsonLine(MakeSynthSample({.seed = seed}, i));
    }
    return text;
  };
  EXPECT_EQ(lines(1), lines(1));
  EXPECT_NE(lines(1), lines(2));
}

TEST(SynthTest, LengthsFollowTheDistribution) {
  for (const int64_t length : {20, 100, 1000}) {
    const SynthOptions options{.lengths =
                                   plan::ParseLengths(fmt::format("fixed:{}", length)).value()};
    for (int64_t i = 0; i < 50; ++i) {
      int64_t tokens = 0;
      for (const ChatMessage& message : MakeSynthSample(options, i).messages) {
        tokens += EstimateTokens(message);
      }
      EXPECT_GE(tokens, length);
      EXPECT_LE(tokens, length + 40);  // the last turn may exceed it
    }
  }
}

TEST(SynthTest, KindsHaveNames) {
  EXPECT_EQ(ParseSynthKind("sort").value(), SynthKind::kSort);
  EXPECT_REFUSED(ParseSynthKind("sorting").status(), "unknown kind 'sorting'");
}

}  // namespace
}  // namespace shoal::worker
