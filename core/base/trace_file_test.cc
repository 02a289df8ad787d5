#include "core/base/trace_file.h"

#include <filesystem>

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
