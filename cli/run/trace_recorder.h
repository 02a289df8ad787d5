// Writes what workers report of their steps into a timeline (core/base/trace_file.h): a process for
// each worker, a span for each stretch of one kind of time; and in rows of their own, a span for
// each copy of activations.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/trace_file.h"
#include "proto/coordinator.pb.h"

namespace shoal::cli {

class TraceRecorder {
 public:
  // Fails at once where `path` cannot be written. `about` says what kind of run it is.
  static absl::StatusOr<std::unique_ptr<TraceRecorder>> Create(const std::string& path,
                                                               std::string_view about);

  void Add(const proto::TraceEvent& event);
  // Writes the end. A line for the user: how many spans, and whether some are missing.
  absl::StatusOr<std::string> Finish();

 private:
  TraceRecorder(std::string path, std::unique_ptr<formats::TraceFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  const std::unique_ptr<formats::TraceFile> file_;
  std::set<int> named_;
  std::set<std::pair<int, bool>> named_copies_;  // worker, and whether reloads
  int64_t dropped_ = 0;
};

}  // namespace shoal::cli
