#include "core/data/sample_reader.h"

#include <string>
#include <vector>

#include "core/base/file.h"
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

class SampleReaderTest : public ::testing::Test {
 protected:
  // ":LINE=SAMPLE" of each, and the error that ended it.
  std::vector<std::string> ReadAll(const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(path_, contents).ok());
    auto reader = SampleReader::Open(path_).value();
    std::vector<std::string> samples;
    while (true) {
      const auto sample = reader->Next();
      if (!sample.ok()) {
        samples.push_back(std::string(Message(sample.status())).substr(path_.size()));
        break;
      }
      if (!sample->has_value()) {
        EXPECT_EQ(reader->bytes_read(), static_cast<int64_t>(contents.size()));
        EXPECT_EQ(reader->bytes_total(), static_cast<int64_t>(contents.size()));
        break;
      }
      samples.push_back(fmt::format("{}={}", reader->where().substr(path_.size()), **sample));
    }
    return samples;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "data.jsonl";
};

TEST_F(SampleReaderTest, SplitsAndCountsLines) {
  EXPECT_THAT(ReadAll(""), ElementsAre());
  EXPECT_THAT(ReadAll("\n\n"), ElementsAre());
  EXPECT_THAT(ReadAll("a\nb"), ElementsAre(":1=a", ":2=b"));
  EXPECT_THAT(ReadAll("\xEF\xBB\xBF{}\r\n \t\n\nb\n"), ElementsAre(":1={}\r", ":4=b"));
}

TEST_F(SampleReaderTest, LinesAcrossBlocks) {
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

TEST_F(SampleReaderTest, TakesListsApart) {
  EXPECT_THAT(ReadAll("[]"), ElementsAre());
  EXPECT_THAT(ReadAll("\xEF\xBB\xBF\n [\n]\n"), ElementsAre());
  EXPECT_THAT(ReadAll(R"([{"a": "}],\\"}, {"b": [{"c": "\""}]}])"),
              ElementsAre(R"(:1={"a": "}],\\"})", R"(:1={"b": [{"c": "\""}]})"));
  EXPECT_THAT(ReadAll("[\n  {\n\"a\": 1\n},\n5 , \"x]\"\n]\n"),
              ElementsAre(":2={\n\"a\": 1\n}", ":5=5 ", ":5=\"x]\"\n"));
}

TEST_F(SampleReaderTest, WhatAFileIsShowsAfterAnyBlanks) {
  const std::string blanks(300'000, '\n');
  EXPECT_THAT(ReadAll(blanks + "[1]"), ElementsAre(":300001=1"));
  EXPECT_THAT(ReadAll(blanks + "1"), ElementsAre(":300001=1"));
}

TEST_F(SampleReaderTest, ElementsAcrossBlocks) {
  Random random(2);
  std::string contents = "[";
  std::vector<std::string> expected;
  for (int i = 1; i <= 40; ++i) {
    const std::string element =
        "{\"t\": \"" + std::string(random.Below(100'000), static_cast<char>('a' + i % 26)) + "\"}";
    contents += (i > 1 ? ",\n" : "") + element;
    expected.push_back(fmt::format(":{}={}", i, element));
  }
  EXPECT_EQ(ReadAll(contents + "]"), expected);
}

TEST_F(SampleReaderTest, NamesWhatIsWrongWithAList) {
  EXPECT_THAT(ReadAll("[{}\n{}]"),
              ElementsAre(":1={}",
                          ":2: the list of samples: a comma is missing between two "
                          "samples"));
  EXPECT_THAT(ReadAll("[{},\n"), ElementsAre(":1={}", HasSubstr(":2: the list of samples: it has "
                                                                "no end; is the file cut short?")));
  EXPECT_THAT(ReadAll("[{}]\n{}"), ElementsAre(":1={}", HasSubstr(":2: the list of samples: there "
                                                                  "is more after its end")));
  EXPECT_THAT(ReadAll(std::string("[{}]\0{}", 7)), ElementsAre(":1={}", HasSubstr("more after")));
  EXPECT_THAT(ReadAll("[,{}]"), ElementsAre(HasSubstr("a sample is missing")));
  EXPECT_THAT(ReadAll("[}"), ElementsAre(HasSubstr("a sample is missing")));
}

TEST_F(SampleReaderTest, SamplesAreBounded) {
  const std::string long_text(SampleReader::kMaxSampleBytes + (1 << 20), 'x');
  EXPECT_THAT(ReadAll("ok\n" + long_text), ElementsAre(":1=ok", HasSubstr(":2: a sample of more")));
  EXPECT_THAT(ReadAll("[1,\n\"" + long_text),
              ElementsAre(":1=1", HasSubstr(":2: a sample of more")));
}

TEST_F(SampleReaderTest, ReadsTheFilesOfAFolderOneAfterTheOther) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "b.jsonl", "b1\n\nb3\n").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / "a.json", "[1, 2]").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / "c.jsonl", "c1").ok());
  const auto reader = SampleReader::Open(folder_.path()).value();
  std::vector<std::string> samples;
  for (auto sample = reader->Next(); sample.value().has_value(); sample = reader->Next()) {
    samples.push_back(reader->where().substr(folder_.path().size()) + "=" + std::string(**sample));
  }
  EXPECT_THAT(samples, ElementsAre("/a.json:1=1", "/a.json:1=2", "/b.jsonl:1=b1", "/b.jsonl:3=b3",
                                   "/c.jsonl:1=c1"));
  EXPECT_EQ(reader->bytes_read(), 15);
  EXPECT_EQ(reader->bytes_total(), 15);
}

TEST_F(SampleReaderTest, MissingFilesAreNamed) {
  EXPECT_REFUSED(SampleReader::Open("/nonexistent/x.jsonl").status(), "/nonexistent/x.jsonl");
}

}  // namespace
}  // namespace shoal::worker
