// What one part of the GPU check found: tables, bars and figures, kept as JSON while it runs.
//
// Each part runs in a process of its own where scripts/gpu-check.sh starts it, so what it has found
// is on disk as soon as it is known: a part that hangs or crashes loses what was not found yet and
// nothing else. The report (gpu_report.h) is made of those files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {

enum class PartState {
  kUnfinished,  // as it is found of a part that was killed
  kDone,
  kSkipped,
  kFailed,
};

struct PartTable {
  std::string title;
  std::string text;                            // what the figures are, before the table
  std::vector<std::vector<std::string>> rows;  // the first is the heading
};

struct PartBar {
  std::string what;
  std::string bar;
  std::string found;  // why not, where it was not measured
  bool met = false;
  bool measured = true;

  std::string_view state() const { return !measured ? "NOT MEASURED" : met ? "met" : "MISSED"; }
};

class PartReport {
 public:
  // Saves to FOLDER/NAME.json; kept in memory alone where the folder is empty.
  PartReport(std::string folder, std::string name)
      : folder_(std::move(folder)), name_(std::move(name)) {}
  static absl::StatusOr<PartReport> Load(const std::string& folder, const std::string& name);
  // The same, to be gone on with: tables that it has are not added anew.
  static absl::StatusOr<PartReport> GoOn(const std::string& folder, const std::string& name);

  const std::string& name() const { return name_; }
  PartState state() const { return state_; }
  const std::string& why() const { return why_; }  // skipped, failed
  double seconds() const { return seconds_; }
  const std::vector<PartTable>& tables() const { return tables_; }
  const std::vector<PartBar>& bars() const { return bars_; }
  // Figures that other parts of the report are reckoned with.
  const nlohmann::json& values() const { return values_; }

  // A new last table, to which AddRow adds, and its number. One of that title that an earlier
  // process has made is taken.
  size_t AddTable(const std::string& title, const std::string& text,
                  const std::vector<std::string>& heading);
  // A row is also a line of progress on stderr.
  void AddRow(const std::vector<std::string>& row);
  void AddRowTo(size_t table, const std::vector<std::string>& row);
  void AddBar(const PartBar& bar);
  void SetValue(const std::string& key, nlohmann::json value);
  void Finish(PartState state, const std::string& why, double seconds);

  // The first failure to write.
  const absl::Status& saved() const { return saved_; }
  nlohmann::json ToJson() const;

 private:
  void Save();

  std::string folder_;
  std::string name_;
  bool goes_on_ = false;
  PartState state_ = PartState::kUnfinished;
  std::string why_;
  double seconds_ = 0;
  std::vector<PartTable> tables_;
  std::vector<PartBar> bars_;
  nlohmann::json values_ = nlohmann::json::object();
  absl::Status saved_;
};

}  // namespace shoal::bench
