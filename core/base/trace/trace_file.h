// Writes a timeline in the Trace Event Format (JSON), which Perfetto (ui.perfetto.dev) and
// chrome://tracing open: processes with threads, each thread a row of spans; counters of a process;
// and arrows from span to span. Real runs and the simulator write the same spans under the same
// names.
//
// The file is written as spans come, so a long trace takes no memory, and appears under its name
// only once Finish succeeded. Where that ends in ".gz" it is packed, which both viewers take. The
// first error is kept and Finish returns it; later calls do nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "core/base/trace/gzip.h"

namespace shoal::formats {

using TraceValue = std::variant<int64_t, double, std::string_view>;
// Empty texts are left out.
using TraceArguments = std::initializer_list<std::pair<std::string_view, TraceValue>>;

// A row of the timeline.
struct TraceRow {
  int64_t process = 0;
  int64_t thread = 0;
};

class TraceFile {
 public:
  // `about` is shown with the trace ("emulated", the job file, ...). Rows may be named at any time;
  // spans of one row may nest but not cross.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(const std::string& path,
                                                           TraceArguments about = {});

  // Viewers show processes in that order, which is by default that of their numbers.
  void NameProcess(int64_t process, std::string_view name,
                   std::optional<int64_t> order = std::nullopt);
  void NameThread(TraceRow row, std::string_view name);
  // Times are in nanoseconds from any origin; viewers count from the first span. `duration` must
  // not be negative.
  void AddSpan(TraceRow row, std::string_view name, int64_t start, int64_t duration,
               TraceArguments arguments = {});
  // A counter has that value from then on.
  void SetCounter(int64_t process, std::string_view name, int64_t time, double value);
  // From within a span to within another one. `to_time` must not be before `from_time`.
  void AddArrow(std::string_view name, TraceRow from, int64_t from_time, TraceRow to,
                int64_t to_time);
  absl::Status Finish();

  int64_t spans() const { return spans_; }

 private:
  explicit TraceFile(std::unique_ptr<StreamedFile> file) : file_(std::move(file)) {}
  void Append(std::string_view text);
  void Write(std::string_view bytes);
  void BeginEvent();

  std::unique_ptr<StreamedFile> file_;
  std::unique_ptr<Gzip> gzip_;  // null: as it is
  absl::Status status_;
  bool empty_ = true;
  int64_t spans_ = 0;
  int64_t arrows_ = 0;
};

}  // namespace shoal::formats
