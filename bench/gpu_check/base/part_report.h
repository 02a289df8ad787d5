// Results of one part of the GPU check: tables, bars and figures, saved as JSON while it runs.
//
// scripts/gpu-check.sh runs each part in its own process, and results are saved as soon as they are
// known: a part that hangs or crashes loses only what it had yet to find. The report (gpu_report.h)
// is made of those files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {

enum class PartState {
  kUnfinished,  // the state left by a part that was killed
  kDone,
  kSkipped,
  kFailed,
};

struct PartTable {
  std::string title;
  std::string text;                            // explains the figures, before the table
  std::vector<std::vector<std::string>> rows;  // the first is the heading
};

struct PartBar {
  std::string what;
  std::string bar;
  std::string found;  // why not, if not measured
  bool met = false;
  bool measured = true;

  std::string_view state() const { return !measured ? "NOT MEASURED" : met ? "met" : "MISSED"; }
};

class PartReport {
 public:
  // Saves to FOLDER/NAME.json; only in memory if the folder is empty.
  PartReport(std::string folder, std::string name)
      : folder_(std::move(folder)), name_(std::move(name)) {}
  static absl::StatusOr<PartReport> Load(const std::string& folder, const std::string& name);
  // Same as Load, to continue: AddTable reuses the tables it has.
  static absl::StatusOr<PartReport> GoOn(const std::string& folder, const std::string& name);

  const std::string& name() const { return name_; }
  PartState state() const { return state_; }
  const std::string& why() const { return why_; }  // skipped or failed
  double seconds() const { return seconds_; }
  const std::vector<PartTable>& tables() const { return tables_; }
  const std::vector<PartBar>& bars() const { return bars_; }
  // Figures from which other parts of the report are computed.
  const nlohmann::json& values() const { return values_; }

  // Appends a table for AddRow and returns its number. Reuses one of that title from an earlier
  // process.
  size_t AddTable(const std::string& title, const std::string& text,
                  const std::vector<std::string>& heading);
  // Also prints the row to stderr, as progress.
  void AddRow(const std::vector<std::string>& row);
  void AddRowTo(size_t table, const std::vector<std::string>& row);
  void AddBar(const PartBar& bar);
  void SetValue(const std::string& key, nlohmann::json value);
  void Finish(PartState state, const std::string& why, double seconds);

  // The first failure to save.
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
