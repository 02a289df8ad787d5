#include "cli/run/trace_recorder.h"

#include <algorithm>
#include <cmath>
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
    proto::JobEvent told;
    proto::TraceEvent& event = *told.mutable_trace();
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
    (*recorder)->Add(told);
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

constexpr int64_t kSecond = 1'700'000'000;

// Times are in microseconds after kSecond.
void AddSpan(proto::TraceEvent& event, TimeKind kind, int64_t start, int64_t end,
             int waited_for = -1) {
  proto::Span& span = *event.add_spans();
  span.set_kind(static_cast<int>(kind));
  span.set_start_nanoseconds(kSecond * 1'000'000'000 + start * 1000);
  span.set_nanoseconds((end - start) * 1000);
  if (waited_for >= 0) {
    span.set_waited_for(waited_for);
  }
}

void AddServed(proto::TraceEvent& event, proto::ServerSpan::Kind kind, int64_t start, int64_t end,
               const std::string& client = "", int thread = 0) {
  proto::ServerSpan& span = *event.add_served();
  span.set_kind(kind);
  span.set_client(client);
  span.set_thread(thread);
  span.set_start_nanoseconds(kSecond * 1'000'000'000 + start * 1000);
  span.set_nanoseconds((end - start) * 1000);
}

proto::JobEvent EventAt(int64_t microseconds) {
  proto::JobEvent event;
  event.set_job_id("job-1");
  event.set_time(static_cast<double>(kSecond) + static_cast<double>(microseconds) * 1e-6);
  return event;
}

proto::JobEvent OfWorker(int worker, int64_t step) {
  proto::JobEvent event;
  event.mutable_trace()->set_worker(worker);
  event.mutable_trace()->set_step(step);
  return event;
}

proto::JobEvent StepAt(int64_t step, int64_t microseconds, double loss) {
  proto::JobEvent event = EventAt(microseconds);
  event.mutable_step()->set_step(step);
  event.mutable_step()->set_loss(loss);
  event.mutable_step()->set_step_seconds(1e-3);
  event.mutable_step()->set_tokens_per_second(1000 * loss);
  return event;
}

using Row = std::pair<int64_t, int64_t>;  // process and thread

struct ReadSpan {
  std::string name;
  double start = 0;
  double end = 0;
};

struct ReadTrace {
  std::map<Row, std::vector<ReadSpan>> rows;
  std::map<std::string, std::vector<double>> counters;
  std::map<int64_t, std::string> processes;
  std::map<int64_t, std::pair<Row, double>> from;  // arrows
  std::map<int64_t, std::pair<Row, double>> to;

  // "worker-0 step_wait": the span of that row around that time.
  std::string At(const std::pair<Row, double>& place) const {
    for (const ReadSpan& span : rows.at(place.first)) {
      if (span.start <= place.second && place.second < span.end) {
        return processes.at(place.first.first) + " " + span.name;
      }
    }
    return "nothing";
  }
};

// Fails where spans of a row cross, which viewers drop.
ReadTrace Read(const std::string& path) {
  ReadTrace read;
  const auto trace = nlohmann::json::parse(*ReadFile(path), nullptr, false);
  for (const auto& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    const Row row = {event.at("pid"), event.value("tid", int64_t{0})};
    if (event.at("name") == "process_name") {
      read.processes[row.first] = event.at("args").at("name");
    } else if (phase == "X") {
      const double start = event.at("ts");
      read.rows[row].push_back({event.at("name"), start, start + event.at("dur").get<double>()});
    } else if (phase == "C") {
      read.counters[event.at("name")].push_back(event.at("args").at("value"));
    } else if (phase == "s") {
      read.from[event.at("id")] = {row, event.at("ts")};
    } else if (phase == "f") {
      EXPECT_EQ(event.at("bp"), "e");
      read.to[event.at("id")] = {row, event.at("ts")};
    }
  }
  for (auto& [row, spans] : read.rows) {
    std::ranges::sort(spans, {}, &ReadSpan::start);
    for (size_t i = 1; i < spans.size(); ++i) {
      EXPECT_GE(spans[i].start, spans[i - 1].end - 0.5)
          << spans[i].name << " at a row of " << read.processes[row.first];
    }
  }
  return read;
}

TEST(TraceRecorder, DrawsServersTheJobAndWhoWasWaitedFor) {
  const std::string path = std::filesystem::path(testing::TempDir()) / "trace_arrows_test.json";
  auto recorder = TraceRecorder::Create(path, "a job");
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  // Worker 1 is slower, and both wait for server 0 at the end.
  proto::JobEvent fast = OfWorker(0, 1);
  AddSpan(*fast.mutable_trace(), TimeKind::kGetWait, 100, 150, 1);
  AddSpan(*fast.mutable_trace(), TimeKind::kBackward, 150, 300);
  AddSpan(*fast.mutable_trace(), TimeKind::kPushWait, 300, 420);
  (*recorder)->Add(fast);
  proto::JobEvent slow = OfWorker(1, 1);
  AddSpan(*slow.mutable_trace(), TimeKind::kNeighbourWait, 110, 400, 0);
  AddSpan(*slow.mutable_trace(), TimeKind::kForward, 400, 700);
  (*recorder)->Add(slow);
  proto::JobEvent server;
  server.mutable_trace()->set_server(0);
  server.mutable_trace()->set_step(1);
  AddServed(*server.mutable_trace(), proto::ServerSpan::KIND_ACCUMULATE, 350, 410, "worker-0");
  AddServed(*server.mutable_trace(), proto::ServerSpan::KIND_ACCUMULATE, 300, 419, "worker-1", 1);
  AddServed(*server.mutable_trace(), proto::ServerSpan::KIND_SEAL, 750, 800);
  AddServed(*server.mutable_trace(), proto::ServerSpan::KIND_UPDATE, 800, 900);
  (*recorder)->Add(server);
  (*recorder)->Add(StepAt(1, 1000, 3.5));
  proto::JobEvent validation = EventAt(1500);
  validation.mutable_validation()->set_loss(3.25);
  validation.mutable_validation()->set_seconds(4e-4);
  (*recorder)->Add(validation);
  for (const int worker : {0, 1}) {
    proto::JobEvent next = OfWorker(worker, 2);
    // Worker 1 goes on a little later: what worker 0 did meanwhile is no cause.
    const int64_t begin = worker == 0 ? 950 : 970;
    AddSpan(*next.mutable_trace(), TimeKind::kStepWait, worker == 0 ? 420 : 700, begin);
    AddSpan(*next.mutable_trace(), TimeKind::kForward, begin, begin + 10);
    AddSpan(*next.mutable_trace(), TimeKind::kForward, begin + 10, 1900);
    (*recorder)->Add(next);
  }
  (*recorder)->Add(StepAt(2, 2500, 3));
  (*recorder)->Add(StepAt(3, 3500, std::nan("")));  // no number for a counter
  proto::JobEvent checkpoint = EventAt(2600);
  checkpoint.mutable_checkpoint()->set_step(1);
  checkpoint.mutable_checkpoint()->set_seconds(5e-4);
  (*recorder)->Add(checkpoint);
  ASSERT_TRUE((*recorder)->Finish().ok());

  const ReadTrace trace = Read(path);
  const int64_t of_server = 1'000'000;
  const int64_t of_job = 2'000'000;
  EXPECT_EQ(trace.processes,
            (std::map<int64_t, std::string>{
                {0, "worker-0"}, {1, "worker-1"}, {of_server, "server-0"}, {of_job, "job-1"}}));
  const auto names = [&](int64_t process, int64_t thread) {
    std::vector<std::string> all;
    for (const ReadSpan& span : trace.rows.at({process, thread})) {
      all.push_back(span.name);
    }
    return all;
  };
  EXPECT_THAT(names(of_server, 0), testing::ElementsAre("seal", "update"));
  EXPECT_THAT(names(of_server, 1), testing::ElementsAre("accumulate"));
  EXPECT_THAT(names(of_server, 2), testing::ElementsAre("accumulate"));
  EXPECT_THAT(names(of_job, 0), testing::ElementsAre("step 1", "validation", "step 2", "step 3"));
  EXPECT_THAT(names(of_job, 1), testing::ElementsAre("checkpoint"));
  EXPECT_EQ(trace.counters,
            (std::map<std::string, std::vector<double>>{
                {"loss", {3.5, 3}}, {"tokens/s", {3500, 3000}}, {"validation loss", {3.25}}}));
  std::map<std::string, std::string> arrows;  // by who waited
  for (const auto& [id, place] : trace.to) {
    arrows[trace.At(place)] = trace.At(trace.from.at(id));
    EXPECT_LE(trace.from.at(id).second, place.second);
  }
  EXPECT_EQ(trace.from.size(), trace.to.size());
  EXPECT_EQ(arrows,
            (std::map<std::string, std::string>{{"worker-0 push_wait", "server-0 accumulate"},
                                                {"worker-1 neighbour_wait", "worker-0 backward"},
                                                {"worker-0 step_wait", "worker-1 forward"},
                                                {"worker-1 step_wait", "server-0 update"}}));
  std::filesystem::remove(path);
}

// As of a worker that another process took the place of, whose clock is behind.
TEST(TraceRecorder, ARowGoesForwardWhateverClocksSay) {
  const std::string path = std::filesystem::path(testing::TempDir()) / "trace_clocks_test.json";
  auto recorder = TraceRecorder::Create(path, "a job");
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  for (const int64_t behind : {0, 150}) {
    proto::JobEvent event = OfWorker(0, 1);
    AddSpan(*event.mutable_trace(), TimeKind::kForward, 300 - behind, 400 - behind);
    AddSpan(*event.mutable_trace(), TimeKind::kBackward, 400 - behind, 500 - behind);
    (*recorder)->Add(event);
  }
  ASSERT_TRUE((*recorder)->Finish().ok());
  EXPECT_EQ(Read(path).rows.at({0, 0}).size(), 4U);
  std::filesystem::remove(path);
}

TEST(TraceRecorder, NamesAFolderThatIsNotThere) {
  const auto recorder = TraceRecorder::Create("/nonexistent/folder/trace.json", "");
  ASSERT_FALSE(recorder.ok());
  EXPECT_THAT(recorder.status().ToString(), testing::HasSubstr("/nonexistent/folder/trace.json"));
}

}  // namespace
}  // namespace shoal::cli
