#include "core/data/jsonl.h"

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/data/token_file.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Error(const std::string& line, const JsonlOptions& options = {.vocabulary = 100}) {
  const auto sample = ParseJsonlLine(line, options, "f.jsonl:7");
  return sample.ok() ? "parsed" : std::string(Message(sample.status()));
}

TEST(JsonlTest, ReadsMessagesPromptsAndIds) {
  const auto chat = ParseJsonlLine(
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"u\n"},)"
      R"({"role":"assistant","content":"a"}],
          "answer":"a","extra":[1]})",
      {}, "f:1");
  EXPECT_THAT(chat->messages,
              ElementsAre(ChatMessage{Role::kSystem, "s"}, ChatMessage{Role::kUser, "u\n"},
                          ChatMessage{Role::kAssistant, "a"}));
  EXPECT_EQ(chat->answer, "a");
  const auto pair =
      ParseJsonlLine(R"({"question":"q","answer":"a"})",
                     {.fields = {{"prompt", "question"}, {"completion", "answer"}}}, "f:1");
  EXPECT_THAT(pair->messages,
              ElementsAre(ChatMessage{Role::kUser, "q"}, ChatMessage{Role::kAssistant, "a"}));
  const auto ids =
      ParseJsonlLine(R"({"input_ids":[1,2,3],"labels":[-100,2,3]})", {.vocabulary = 4}, "f:1");
  EXPECT_THAT(ids->input_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(ids->labels, ElementsAre(-100, 2, 3));
  EXPECT_TRUE(ids->messages.empty());
}

TEST(JsonlTest, ReadsWeights) {
  const auto chat =
      ParseJsonlLine(R"({"weight":0.5,"messages":[{"role":"user","content":"u"},)"
                     R"({"role":"assistant","content":"a","weight":0},)"
                     R"({"role":"assistant","content":"b","weight":2.5,"name":"n"}]})",
                     {}, "f:1");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->weight, 0.5f);
  EXPECT_EQ(chat->messages[0].weight, 1);
  EXPECT_EQ(chat->messages[1].weight, 0);
  EXPECT_EQ(chat->messages[2].weight, 2.5f);
  EXPECT_TRUE(chat->messages[1].more.is_null()) << "templates do not see it";
  EXPECT_EQ(chat->messages[2].more.dump(), R"({"name":"n"})");
  const auto turns = ParseJsonlLine(
      R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a","weight":3}]})",
      {}, "f:1");
  EXPECT_EQ(turns->messages[1].weight, 3);
  const auto ids = ParseJsonlLine(R"({"input_ids":[1,2],"labels":[-100,2],"w":[0,0.25],"s":4})",
                                  {.fields = {{"weights", "w"}, {"weight", "s"}}}, "f:1");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(ids->weights, ElementsAre(0.0f, 0.25f));
  EXPECT_EQ(ids->weight, 4);
  const auto least = ParseJsonlLine(R"({"prompt":"p","completion":"c","weight":1e-6})", {}, "f:1");
  EXPECT_EQ(least->weight, formats::kLeastWeight);
  EXPECT_EQ(ParseJsonlLine(R"({"prompt":"p","completion":"c","weight":null})", {}, "f:1")->weight,
            1);
}

TEST(JsonlTest, AWeightThatIsAnotherFieldIsNone) {
  const std::string line = R"({"prompt":"p","weight":"3 kg"})";
  const auto taken = ParseJsonlLine(line, {.fields = {{"completion", "weight"}}}, "f:1");
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->weight, 1);
  EXPECT_EQ(taken->messages[1].content, "3 kg");
  const auto other = ParseJsonlLine(R"({"prompt":"p","completion":"c","weight":"3 kg"})",
                                    {.fields = {{"weight", "loss_weight"}}}, "f:1");
  EXPECT_TRUE(other.ok()) << other.status();
}

TEST(JsonlTest, RefusesWeightsThatAreNone) {
  for (const char* bad : {"-1", "1e7", "1e-9", "1e-50", "1e300", "\"2\"", "true", "[1]"}) {
    EXPECT_THAT(Error(fmt::format(R"({{"prompt":"p","completion":"c","weight":{}}})", bad)),
                HasSubstr("f.jsonl:7: weight is "))
        << bad;
    EXPECT_THAT(Error(fmt::format(
                    R"({{"messages":[{{"role":"assistant","content":"c","weight":{}}}]}})", bad)),
                HasSubstr("f.jsonl:7: message 0: weight is "))
        << bad;
    EXPECT_THAT(Error(fmt::format(R"({{"input_ids":[1,2],"labels":[1,2],"weights":[1,{}]}})", bad)),
                HasSubstr("f.jsonl:7: weights[1] is "))
        << bad;
  }
  EXPECT_THAT(Error(R"({"prompt":"p","completion":"c","weight":-1})"),
              HasSubstr("weight is -1, not 0 or a number from 1e-06 to 1000000"));
  EXPECT_THAT(Error(R"({"input_ids":[1,2],"labels":[1,2],"weights":[1]})"),
              HasSubstr("weights has 1 entries and labels has 2; they must be equally many"));
}

TEST(JsonlTest, ReadsShareGpt) {
  const auto sample = ParseJsonlLine(
      R"({"system":"s","conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"},)"
      R"({"from":"user","value":"r"},{"from":"assistant","value":"b"}]})",
      {}, "f:1");
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_THAT(sample->messages,
              ElementsAre(ChatMessage{Role::kSystem, "s"}, ChatMessage{Role::kUser, "q"},
                          ChatMessage{Role::kAssistant, "a"}, ChatMessage{Role::kUser, "r"},
                          ChatMessage{Role::kAssistant, "b"}));
  EXPECT_THAT(Error(R"({"conversations":[]})"), HasSubstr("f.jsonl:7: there are no turns"));
  EXPECT_THAT(Error(R"({"conversations":[{"from":"human","value":"x"},{"from":"tool"}]})"),
              HasSubstr("f.jsonl:7: conversations[1]: a turn is from 'tool'; known are"));
  EXPECT_THAT(Error(R"({"conversations":[{"from":"human"}]})"),
              HasSubstr("conversations[0]: value is missing"));
}

TEST(JsonlTest, ReadsAlpaca) {
  const auto with_input =
      ParseJsonlLine(R"({"instruction":"Add.","input":"1 2","output":"3"})", {}, "f:1");
  ASSERT_TRUE(with_input.ok()) << with_input.status();
  EXPECT_THAT(with_input->messages, ElementsAre(ChatMessage{Role::kUser, "Add.\n1 2"},
                                                ChatMessage{Role::kAssistant, "3"}));
  const auto whole = ParseJsonlLine(
      R"({"system":"s","history":[["q","a"]],"instruction":"r","input":"","output":"b"})", {},
      "f:1");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(whole->messages,
              ElementsAre(ChatMessage{Role::kSystem, "s"}, ChatMessage{Role::kUser, "q"},
                          ChatMessage{Role::kAssistant, "a"}, ChatMessage{Role::kUser, "r"},
                          ChatMessage{Role::kAssistant, "b"}));
  EXPECT_THAT(Error(R"({"instruction":"a","history":[["q"]],"output":"b"})"),
              HasSubstr("f.jsonl:7: history[0] is no list of what"));
  EXPECT_THAT(Error(R"({"instruction":"a","output":5})"),
              HasSubstr("output is 5, expected a string"));
  // Fields that the job names win over the look of a sample.
  const auto named =
      ParseJsonlLine(R"({"instruction":"a","input":"i","output":"b"})",
                     {.fields = {{"prompt", "instruction"}, {"completion", "output"}}}, "f:1");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->messages[0].content, "a");
}

TEST(JsonlTest, EmptyListsAndNullSayNothing) {
  const auto sample =
      ParseJsonlLine(R"({"messages":[{"role":"user","content":"x","tool_calls":[]},)"
                     R"({"role":"assistant","content":null,"tool_calls":null}],"tools":[]})",
                     {}, "f:1");
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_THAT(sample->messages,
              ElementsAre(ChatMessage{Role::kUser, "x"}, ChatMessage{Role::kAssistant, ""}));
  EXPECT_TRUE(sample->tools.is_null());
}

TEST(JsonlTest, SaysWhatIsNoSuchForm) {
  EXPECT_THAT(Error(R"({"text":"Once"})"),
              HasSubstr("looks like a document, which train.objective: pretrain"));
  EXPECT_THAT(Error("Once upon"), HasSubstr("is this plain text?"));
  EXPECT_THAT(Error("SHOALTOK"), HasSubstr("is a token file, which is taken alone"));
  EXPECT_THAT(Error("PAR1\x15"), HasSubstr("Parquet"));
}

TEST(JsonlTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error("{"), HasSubstr("f.jsonl:7: not valid JSON at byte"));
  EXPECT_THAT(Error("[]"), HasSubstr("f.jsonl:7 is array, expected an object"));
  EXPECT_THAT(Error(R"({"question":"q","answer":"a"})"), HasSubstr("but 'answer', 'question'"));
  EXPECT_THAT(Error(R"({"messages":[]})"), HasSubstr("no messages"));
  EXPECT_THAT(Error(R"({"messages":"hi"})"), HasSubstr("messages is \"hi\", expected an array"));
  EXPECT_THAT(Error(R"({"messages":[{"role":"pirate","content":"x"}]})"),
              HasSubstr("unknown role 'pirate'"));
  EXPECT_THAT(Error(R"({"messages":[{"role":"user","content":null}]})"),
              HasSubstr("message 0: content is missing"));
  EXPECT_THAT(Error(R"({"messages":[{"role":"user","content":5}]})"),
              HasSubstr("content is 5, expected a string"));
  EXPECT_THAT(Error(R"({"prompt":"x"})"), HasSubstr("completion is missing"));
  EXPECT_THAT(Error(R"({"input_ids":[1,2]})"), HasSubstr("labels is missing"));
  EXPECT_THAT(Error(R"({"input_ids":[1,2],"labels":[1]})"), HasSubstr("must be equally many"));
  EXPECT_THAT(Error(R"({"input_ids":[1,100],"labels":[1,1]})"), HasSubstr("input_ids[1] is 100"));
  EXPECT_THAT(Error(R"({"input_ids":[1,-100],"labels":[1,1]})"), HasSubstr("input_ids[1] is -100"));
  EXPECT_THAT(Error(R"({"input_ids":[1,2],"labels":[1,-1]})"),
              HasSubstr("labels[1] is -1, not -100 or an id"));
  EXPECT_THAT(Error(R"({"input_ids":[1,2.5],"labels":[1,1]})"), HasSubstr("input_ids[1] is 2.5"));
  EXPECT_THAT(Error(R"({"input_ids":[18446744073709551615],"labels":[1]})"),
              HasSubstr("input_ids[0]"));
  EXPECT_THAT(Error("{\"prompt\":\"\xff\",\"completion\":\"x\"}"), HasSubstr("not valid JSON"));
  EXPECT_REFUSED(CheckFields({{"promt", "x"}}), "unknown name 'promt'");
  EXPECT_TRUE(CheckFields({{"prompt", "x"}, {"answer", "y"}}).ok());
}

}  // namespace
}  // namespace shoal::worker
