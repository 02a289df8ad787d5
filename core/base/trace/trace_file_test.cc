#include "core/base/trace/trace_file.h"

#include <zlib.h>

#include <filesystem>
#include <vector>

#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {
namespace {

using nlohmann::json;

std::string PathOf(const std::string& name) { return testing::TempDir() + "/" + name; }

json ReadBack(const std::string& path) { return json::parse(*ReadFile(path)); }

TEST(TraceFile, IsTheTraceEventFormat) {
  const std::string path = PathOf("trace.json");
  auto trace = TraceFile::Create(path, {{"kind", "simulated"}, {"steps", int64_t{2}}});
  ASSERT_TRUE(trace.ok()) << trace.status();
  (*trace)->NameProcess(3, "worker-3");
  (*trace)->NameThread({3, 1}, "compute");
  (*trace)->AddSpan({3, 1}, "forward", 1500, 2'000'001,
                    {{"microbatch", int64_t{4}}, {"share", 0.25}, {"of", "a \"b\""}});
  (*trace)->AddSpan({3, 1}, "get_wait", -1, 0);
  ASSERT_TRUE((*trace)->Finish().ok());
  EXPECT_EQ((*trace)->spans(), 2);

  const json file = ReadBack(path);
  EXPECT_EQ(file["otherData"], json({{"kind", "simulated"}, {"steps", 2}}));
  const json& events = file["traceEvents"];
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(
      events[0],
      json({{"ph", "M"}, {"pid", 3}, {"name", "process_name"}, {"args", {{"name", "worker-3"}}}}));
  EXPECT_EQ(events[2]["name"], "thread_name");
  EXPECT_EQ(events[3], json({{"ph", "X"},
                             {"pid", 3},
                             {"tid", 1},
                             {"ts", 1.5},
                             {"dur", 2000.001},
                             {"name", "forward"},
                             {"args", {{"microbatch", 4}, {"share", 0.25}, {"of", "a \"b\""}}}}));
  EXPECT_EQ(events[4]["ts"], -0.001);
  EXPECT_FALSE(events[4].contains("args"));
}

TEST(TraceFile, EmptyIsValidAndBadBytesAreReplaced) {
  const std::string path = PathOf("empty_trace.json");
  auto trace = TraceFile::Create(path);
  ASSERT_TRUE(trace.ok());
  ASSERT_TRUE((*trace)->Finish().ok());
  EXPECT_TRUE(ReadBack(path)["traceEvents"].empty());

  trace = TraceFile::Create(path);
  ASSERT_TRUE(trace.ok());
  (*trace)->NameProcess(0, "bad \xff\n name");
  ASSERT_TRUE((*trace)->Finish().ok());
  EXPECT_EQ(ReadBack(path)["traceEvents"][0]["args"]["name"], "bad \xEF\xBF\xBD\n name");
}

TEST(TraceFile, CountersAndArrows) {
  const std::string path = PathOf("arrows_trace.json");
  auto trace = TraceFile::Create(path);
  ASSERT_TRUE(trace.ok());
  (*trace)->NameProcess(9, "the job", -1);
  (*trace)->SetCounter(9, "loss", 2500, 0.5);
  (*trace)->AddArrow("waited for", {1, 0}, 1000, {2, 3}, 4000);
  ASSERT_TRUE((*trace)->Finish().ok());
  const json events = ReadBack(path)["traceEvents"];
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[1]["args"], json({{"sort_index", -1}}));
  EXPECT_EQ(
      events[2],
      json({{"ph", "C"}, {"pid", 9}, {"ts", 2.5}, {"name", "loss"}, {"args", {{"value", 0.5}}}}));
  EXPECT_EQ(events[3], json({{"ph", "s"},
                             {"id", 1},
                             {"pid", 1},
                             {"tid", 0},
                             {"ts", 1.0},
                             {"cat", "arrow"},
                             {"name", "waited for"}}));
  EXPECT_EQ(events[4], json({{"ph", "f"},
                             {"bp", "e"},
                             {"id", 1},
                             {"pid", 2},
                             {"tid", 3},
                             {"ts", 4.0},
                             {"cat", "arrow"},
                             {"name", "waited for"}}));
}

// zlib's own reader takes what is packed.
TEST(TraceFile, IsPackedWhereItsNameSaysSo) {
  std::string texts[2];
  for (const bool packed : {false, true}) {
    const std::string path = PathOf(packed ? "trace_packed.json.gz" : "trace_packed.json");
    auto trace = TraceFile::Create(path);
    ASSERT_TRUE(trace.ok());
    for (int64_t span = 0; span < 20000; ++span) {
      (*trace)->AddSpan({}, "forward", span * span, span % 777, {{"microbatch", span}});
    }
    ASSERT_TRUE((*trace)->Finish().ok());
    gzFile file = gzopen(path.c_str(), "rb");  // reads what is not packed as it is
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(gzdirect(file) == 0, packed);
    std::vector<char> piece(1 << 16);
    for (int read = 1; read > 0;) {
      read = gzread(file, piece.data(), static_cast<unsigned>(piece.size()));
      ASSERT_GE(read, 0);
      texts[packed].append(piece.data(), static_cast<size_t>(read));
    }
    EXPECT_EQ(gzclose(file), Z_OK);
  }
  EXPECT_GT(texts[0].size(), 1000000u);
  EXPECT_TRUE(texts[1] == texts[0]);
  EXPECT_LT(ReadFile(PathOf("trace_packed.json.gz"))->size(), texts[0].size() / 4);
}

TEST(TraceFile, WithoutFinishThereIsNothing) {
  const std::string folder = PathOf("trace_unfinished");
  ASSERT_TRUE(CreateDirectories(folder).ok());
  {
    auto trace = TraceFile::Create(folder + "/trace.json");
    ASSERT_TRUE(trace.ok());
    (*trace)->AddSpan({}, "data", 0, 1);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_FALSE(TraceFile::Create(folder + "/none/trace.json").ok());
}

}  // namespace
}  // namespace shoal::formats
