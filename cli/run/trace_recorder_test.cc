#include "cli/run/trace_recorder.h"

#include <filesystem>
#include <map>
#include <set>

#include "core/base/file.h"
#include "core/base/time_kind.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

TEST(TraceRecorder, WritesWhatWorkersReport) {
  const std::string path = std::filesystem::path(testing::TempDir()) / "trace_recorder_test.json";
  auto recorder = TraceRecorder::Create(path, "emulated");
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  for (const int worker : {2, 0}) {
    proto::TraceEvent event;
    event.set_worker(worker);
    event.set_step(7);
    event.set_attempt(1);
    event.set_dropped(worker);
    for (const TimeKind kind : {TimeKind::kForward, TimeKind::kLayerWait}) {
      proto::Span& span = *event.add_spans();
      span.set_kind(static_cast<int>(kind));
      span.set_microbatch(3);
      span.set_unit(-1);
      span.set_start_nanoseconds(1'700'000'000'000'000'000 + 1000 * static_cast<int>(kind));
      span.set_nanoseconds(500);
    }
    event.add_spans()->set_kind(99);  // unknown: skipped
    if (worker == 2) {
      event.set_place("stage 1 of group 0");
      for (const bool reload : {false, true}) {
        proto::CopySpan& copy = *event.add_copies();
        copy.set_reload(reload);
        copy.set_microbatch(3);
        copy.set_start_nanoseconds(1'700'000'000'000'000'000);
        copy.set_nanoseconds(700);
      }
    }
    (*recorder)->Add(event);
  }
  const auto text = (*recorder)->Finish();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, testing::HasSubstr("6 spans"));
  EXPECT_THAT(*text, testing::HasSubstr("2 spans found no room"));

  const nlohmann::json trace = nlohmann::json::parse(*ReadFile(path), nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  std::map<int, std::vector<std::string>> names;
  std::map<int, std::vector<std::string>> copies;
  std::set<std::string> processes;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") {
      processes.insert(event.at("args").at("name"));
    }
    if (event.at("ph") == "X") {
      (event.at("tid") == 0 ? names : copies)[event.at("pid").get<int>()].push_back(
          event.at("name"));
      EXPECT_EQ(event.at("args").at("step"), 7);
      EXPECT_EQ(event.at("args").at("microbatch"), 3);
    }
  }
  const std::vector<std::string> expected = {"forward", "layer_wait"};
  EXPECT_EQ(names, (std::map<int, std::vector<std::string>>{{0, expected}, {2, expected}}));
  EXPECT_EQ(copies, (std::map<int, std::vector<std::string>>{{2, {"offload", "reload"}}}));
  EXPECT_EQ(processes, (std::set<std::string>{"worker-0", "worker-2: stage 1 of group 0"}));
  std::filesystem::remove(path);
}

TEST(TraceRecorder, NamesAFolderThatIsNotThere) {
  const auto recorder = TraceRecorder::Create("/nonexistent/folder/trace.json", "");
  ASSERT_FALSE(recorder.ok());
  EXPECT_THAT(recorder.status().ToString(), testing::HasSubstr("/nonexistent/folder/trace.json"));
}

}  // namespace
}  // namespace shoal::cli
