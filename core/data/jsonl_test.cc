#include "core/data/jsonl.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
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

TEST(JsonlTest, ReadsTheThreeForms) {
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

TEST(JsonlTest, NamesTheFormsOfOtherPrograms) {
  EXPECT_THAT(Error(R"({"conversations":[{"from":"human","value":"x"}]})"),
              HasSubstr("f.jsonl:7: this looks like ShareGPT"));
  EXPECT_THAT(Error(R"({"instruction":"a","input":"","output":"b"})"),
              HasSubstr("{prompt: instruction, completion: output}"));
  EXPECT_THAT(Error(R"({"text":"Once"})"), HasSubstr("looks like plain text for pretraining"));
  EXPECT_THAT(Error("Once upon"), HasSubstr("is this plain text?"));
  EXPECT_THAT(Error(R"([{"prompt":"a","completion":"b"}])"), HasSubstr("the file is a list"));
  EXPECT_THAT(Error("\x1f\x8b\x08"), HasSubstr("gunzip"));
  EXPECT_THAT(Error("PAR1\x15"), HasSubstr("Parquet"));
  // Fields that the job names win over the look of a line.
  const auto sample =
      ParseJsonlLine(R"({"instruction":"a","output":"b"})",
                     {.fields = {{"prompt", "instruction"}, {"completion", "output"}}}, "f:1");
  EXPECT_TRUE(sample.ok()) << sample.status();
}

TEST(JsonlTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error("{"), HasSubstr("f.jsonl:7: not valid JSON at byte"));
  EXPECT_THAT(Error("[]"), HasSubstr("f.jsonl:7 is array, expected an object"));
  EXPECT_THAT(Error(R"({"question":"q","answer":"a"})"), HasSubstr("but 'answer', 'question'"));
  EXPECT_THAT(Error(R"({"messages":[]})"), HasSubstr("no messages"));
  EXPECT_THAT(Error(R"({"messages":"hi"})"), HasSubstr("messages is \"hi\", expected an array"));
  EXPECT_THAT(Error(R"({"messages":[{"role":"tool","content":"x"}]})"),
              HasSubstr("unknown role 'tool'"));
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

class JsonlReaderTest : public ::testing::Test {
 protected:
  std::vector<std::string> ReadAll(const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(path_, contents).ok());
    auto reader = JsonlReader::Open(path_).value();
    std::vector<std::string> lines;
    while (true) {
      const auto line = reader->Next();
      if (!line.ok()) {
        lines.push_back(std::string(Message(line.status())));
        break;
      }
      if (!line->has_value()) {
        EXPECT_EQ(reader->bytes_read(), static_cast<int64_t>(contents.size()));
        break;
      }
      lines.push_back(fmt::format("{}={}", reader->where().substr(path_.size()), **line));
    }
    return lines;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "data.jsonl";
};

TEST_F(JsonlReaderTest, SplitsAndCountsLines) {
  EXPECT_THAT(ReadAll(""), ElementsAre());
  EXPECT_THAT(ReadAll("\n\n"), ElementsAre());
  EXPECT_THAT(ReadAll("a\nb"), ElementsAre(":1=a", ":2=b"));
  EXPECT_THAT(ReadAll("\xEF\xBB\xBF{}\r\n \t\n\nb\n"), ElementsAre(":1={}\r", ":4=b"));
}

TEST_F(JsonlReaderTest, LinesAcrossBlocks) {
  Random random(1);
  std::string contents;
  std::vector<std::string> expected;
  for (int i = 1; i <= 40; ++i) {
    const std::string line(random.Below(100'000) + 1, static_cast<char>('a' + i % 26));
    contents += line + "\n";
    expected.push_back(fmt::format(":{}={}", i, line));
  }
  EXPECT_EQ(ReadAll(contents), expected);
}

TEST_F(JsonlReaderTest, LinesAreBounded) {
  const auto lines = ReadAll("ok\n" + std::string(JsonlReader::kMaxLineBytes + (1 << 20), 'x'));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr(":2: a line of more than"));
}

TEST_F(JsonlReaderTest, MissingFilesAreNamed) {
  EXPECT_REFUSED(JsonlReader::Open("/nonexistent/x.jsonl").status(), "/nonexistent/x.jsonl");
  EXPECT_REFUSED(JsonlReader::Open("/").status(), "is a folder");
}

}  // namespace
}  // namespace shoal::worker
