#include "bench/gpu_check/base/part_report.h"

#include <array>
#include <string_view>

#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

constexpr std::array<std::string_view, 4> kStates = {"unfinished", "done", "skipped", "failed"};

std::string PathOf(const std::string& folder, const std::string& name) {
  return fmt::format("{}/{}.json", folder, name);
}

}  // namespace

size_t PartReport::AddTable(const std::string& title, const std::string& text,
                            const std::vector<std::string>& heading) {
  const auto made = std::ranges::find(tables_, title, &PartTable::title);
  if (goes_on_ && made != tables_.end()) {
    return static_cast<size_t>(made - tables_.begin());
  }
  tables_.push_back({title, text, {heading}});
  return tables_.size() - 1;
}

absl::StatusOr<PartReport> PartReport::GoOn(const std::string& folder, const std::string& name) {
  SHOAL_ASSIGN_OR_RETURN(PartReport report, Load(folder, name));
  report.folder_ = folder;
  report.goes_on_ = true;
  return report;
}

void PartReport::AddRow(const std::vector<std::string>& row) {
  SHOAL_CHECK(!tables_.empty());
  AddRowTo(tables_.size() - 1, row);
}

void PartReport::AddRowTo(size_t table, const std::vector<std::string>& row) {
  SHOAL_CHECK(table < tables_.size() && row.size() == tables_[table].rows.front().size());
  tables_[table].rows.push_back(row);
  fmt::print(stderr, "{}: {}\n", name_, fmt::join(row, " | "));
  Save();
}

void PartReport::AddBar(const PartBar& bar) {
  bars_.push_back(bar);
  fmt::print(stderr, "{}: {}: {}, {}: {}\n", name_, bar.what, bar.bar, bar.found, bar.state());
  Save();
}

void PartReport::SetValue(const std::string& key, nlohmann::json value) {
  values_[key] = std::move(value);
  Save();
}

void PartReport::Finish(PartState state, const std::string& why, double seconds) {
  state_ = state;
  why_ = why;
  seconds_ = seconds;
  Save();
}

void PartReport::Save() {
  if (folder_.empty() || !saved_.ok()) {
    return;
  }
  saved_ = CreateDirectories(folder_);
  if (saved_.ok()) {
    saved_ = WriteFileAtomically(PathOf(folder_, name_), ToJson().dump(1) + "\n");
  }
}

nlohmann::json PartReport::ToJson() const {
  nlohmann::json json = {{"part", name_},
                         {"state", kStates[static_cast<size_t>(state_)]},
                         {"why", why_},
                         {"seconds", seconds_},
                         {"values", values_},
                         {"tables", nlohmann::json::array()},
                         {"bars", nlohmann::json::array()}};
  for (const PartTable& table : tables_) {
    json["tables"].push_back({{"title", table.title}, {"text", table.text}, {"rows", table.rows}});
  }
  for (const PartBar& bar : bars_) {
    json["bars"].push_back({{"what", bar.what},
                            {"bar", bar.bar},
                            {"found", bar.found},
                            {"met", bar.met},
                            {"measured", bar.measured}});
  }
  return json;
}

absl::StatusOr<PartReport> PartReport::Load(const std::string& folder, const std::string& name) {
  const std::string path = PathOf(folder, name);
  SHOAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  PartReport report(/*folder=*/"", name);
  try {  // the JSON library's stay in this function
    const auto state =
        std::find(kStates.begin(), kStates.end(), json.at("state").get<std::string>());
    if (state == kStates.end()) {
      return InvalidArgument("{}: state is none", path);
    }
    report.state_ = static_cast<PartState>(state - kStates.begin());
    report.why_ = json.at("why");
    report.seconds_ = json.at("seconds");
    report.values_ = json.at("values");
    for (const nlohmann::json& table : json.at("tables")) {
      report.tables_.push_back({table.at("title"), table.at("text"), table.at("rows")});
    }
    for (const nlohmann::json& bar : json.at("bars")) {
      report.bars_.push_back(
          {bar.at("what"), bar.at("bar"), bar.at("found"), bar.at("met"), bar.at("measured")});
    }
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument("{}: {}", path, error.what());
  }
  return report;
}

}  // namespace shoal::bench
