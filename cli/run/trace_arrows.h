// From whom to whom a timeline's arrows go: to a wait, from what others did that ended last while
// it lasted, for that is what it was for. Knows the spans of a step and of the one before. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/base/trace/trace_file.h"

namespace shoal::cli {

class TraceArrows {
 public:
  struct Span {
    formats::TraceRow row;
    int64_t start = 0;  // nanoseconds
    int64_t end = 0;
  };
  struct Arrow {
    Span from;
    Span to;  // the wait
  };
  // Who may have been waited for.
  enum class Others {
    kOneWorker,           // `worker`
    kWorkers,             // any other
    kWorkersThenServers,  // or a server's end of a step, where no other worker was busy
    kPushes,              // servers, as they took this worker's pushes
  };

  // Spans of a process in the order of their ends.
  void AddWork(int worker, const Span& span) { step_.workers[worker].push_back(span); }
  void AddPush(int worker, const Span& span) { step_.pushes[worker].push_back(span); }
  void AddEndOfStep(int server, const Span& span) { step_.servers[server].push_back(span); }
  void AddWait(const Span& wait, int self, Others others, int worker = -1) {
    waits_.push_back({wait, self, others, worker});
  }

  // Once all spans of a step are here: its arrows.
  std::vector<Arrow> EndStep();

 private:
  using Rows = std::map<int, std::vector<Span>>;
  struct Step {
    Rows workers;
    Rows pushes;  // at servers, by the worker that pushes
    Rows servers;
  };
  struct Wait {
    Span span;
    int self = 0;
    Others others = Others::kWorkers;
    int worker = -1;
  };
  std::optional<Span> CauseOf(const Wait& wait) const;

  Step before_;
  Step step_;
  std::vector<Wait> waits_;
};

}  // namespace shoal::cli
