#include "bench/gpu_check/report/gpu_report.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/gpu_check/report/peer.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using nlohmann::json;

std::string_view StateName(const PartReport& part) {
  switch (part.state()) {
    case PartState::kDone:
      return "done";
    case PartState::kSkipped:
      return "skipped";
    case PartState::kUnfinished:
    case PartState::kFailed:
      break;
  }
  return "FAILED";
}

bool Failed(const PartReport& part) {
  return part.state() == PartState::kFailed || part.state() == PartState::kUnfinished;
}

std::vector<PartReport> LoadParts(const std::string& folder, std::span<const Part> chosen) {
  std::vector<PartReport> parts;
  for (const Part& part : chosen) {
    const std::string name(part.name);
    absl::StatusOr<PartReport> loaded = PartReport::Load(folder, name);
    if (!loaded.ok()) {
      PartReport& missing = parts.emplace_back("", name);
      missing.Finish(PartState::kFailed, std::string(Message(loaded.status())), 0);
      continue;
    }
    if (loaded->state() == PartState::kUnfinished) {
      loaded->Finish(PartState::kFailed, "was ended before it was done", 0);
    }
    parts.push_back(*std::move(loaded));
  }
  return parts;
}

json LoadTorch(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadFile(folder + "/torch.json");
  const absl::StatusOr<std::string> end = ReadFile(folder + "/torch-end.txt");
  const std::string ended =
      end.ok() ? std::string(absl::StripAsciiWhitespace(*end)) : std::string();
  if (!text.ok()) {
    return {{"skipped", ended.empty() ? "it was not run" : ended}};
  }
  json torch = json::parse(*text, nullptr, false);
  if (!torch.is_object()) {
    return {{"skipped", "torch.json is no JSON object"}};
  }
  if (!ended.empty()) {
    torch["ended"] = ended;
  }
  return torch;
}

std::vector<std::vector<std::string>> LoadStates(const std::string& folder) {
  std::vector<std::vector<std::string>> rows;
  const absl::StatusOr<std::string> text = ReadFile(folder + "/gpu-states.csv");
  if (!text.ok()) {
    return rows;
  }
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(*text, '\n', absl::SkipEmpty()))) {
    std::vector<std::string> row = absl::StrSplit(line, ',');
    for (std::string& cell : row) {
      absl::StripAsciiWhitespace(&cell);
    }
    if (!rows.empty()) {
      row.resize(rows.front().size());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Explains a wanted bar that its part did not measure.
std::string WhyNotMeasured(const PartReport& part) {
  return part.state() == PartState::kDone
             ? "the part left it out: see its table"
             : fmt::format("{} {}: {}", part.name(), StateName(part), part.why());
}

std::vector<PartBar> BarsOf(const std::vector<PartReport>& parts, const json& torch,
                            const PartSizes& sizes) {
  std::vector<PartBar> bars;
  std::vector<std::string> wanted;
  for (const WantedBar& bar : WantedBars(sizes)) {
    const auto part = std::find_if(parts.begin(), parts.end(),
                                   [&](const auto& p) { return p.name() == bar.part; });
    if (part == parts.end()) {
      continue;
    }
    wanted.push_back(bar.what);
    const auto found = std::find_if(part->bars().begin(), part->bars().end(),
                                    [&](const PartBar& b) { return b.what == bar.what; });
    bars.push_back(found == part->bars().end() ? bar.NotMeasured(WhyNotMeasured(*part)) : *found);
  }
  if (parts.size() == Parts().size()) {
    for (const TrainCase& c : sizes.train) {
      for (const auto optimizer : {PeerOptimizer::kBf16, PeerOptimizer::kFp32Masters}) {
        bars.push_back(PeerBarOf(c.Name(), optimizer, parts, torch));
      }
    }
  }
  for (const PartReport& part : parts) {
    for (const PartBar& bar : part.bars()) {
      if (std::find(wanted.begin(), wanted.end(), bar.what) == wanted.end()) {
        bars.push_back(bar);
      }
    }
  }
  return bars;
}

void AddBars(const std::vector<PartBar>& bars, Report& report) {
  for (const PartBar& bar : bars) {
    if (bar.measured) {
      report.Bar(bar.what, bar.bar, bar.found, bar.met);
    } else {
      report.NotMeasured(bar.what, bar.bar, bar.found);
    }
  }
}

void AddParts(const std::vector<PartReport>& parts, Report& report) {
  std::vector<std::vector<std::string>> states = {{"part", "state", "seconds", ""}};
  for (const PartReport& part : parts) {
    states.push_back({part.name(), std::string(StateName(part)),
                      fmt::format("{:.0f}", part.seconds()), part.why()});
  }
  report.Heading("Parts");
  report.Table(states);
  for (const PartReport& part : parts) {
    for (const PartTable& table : part.tables()) {
      report.Heading(table.title);
      if (!table.text.empty()) {
        report.Paragraph(table.text);
      }
      report.Table(table.rows);
    }
  }
}

// Counts them over all parts, with one row each.
void AddRefusedProducts(const std::vector<PartReport>& parts, Report& report) {
  std::vector<std::vector<std::string>> rows = {{"part", "product, and why", "times"}};
  bool asked = false;
  for (const PartReport& part : parts) {
    const auto refused = RefusedProductsOf(part);
    asked = asked || refused.has_value();
    for (const auto& [product, count] : refused.value_or(std::map<std::string, int64_t>())) {
      rows.push_back({part.name(), product, fmt::format("{}", count)});
    }
  }
  if (!asked) {
    return;
  }
  report.Heading("Matrix products that cuBLASLt refused");
  report.Paragraph(
      fmt::format("Shapes in all parts: {}. Kernels of our own make such products, more slowly.",
                  rows.size() - 1));
  if (rows.size() > 1) {
    report.Table(rows);
  }
}

}  // namespace

GpuResults LoadResults(const std::string& folder, const PartSizes& sizes,
                       std::span<const Part> chosen) {
  GpuResults results;
  results.parts = LoadParts(folder, chosen);
  results.torch = LoadTorch(folder);
  results.gpu_states = LoadStates(folder);
  results.bars = BarsOf(results.parts, results.torch, sizes);
  return results;
}

absl::StatusOr<WrittenReport> WriteGpuReport(const GpuResults& results, const std::string& output,
                                             const std::vector<std::string>& notes) {
  const std::vector<PartReport>& parts = results.parts;
  std::string name = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()) + "-gpu";
  if (parts.size() == 1) {
    name += "-" + parts.front().name();
  }
  Report report(name);
  AddBars(results.bars, report);
  AddParts(parts, report);
  AddRefusedProducts(parts, report);
  if (parts.size() > 1) {
    AddPeer(parts, results.torch, report);
  }
  if (!results.gpu_states.empty()) {
    report.Heading("The GPU's state at the end of each part");
    report.Table(results.gpu_states);
  }
  SHOAL_RETURN_IF_ERROR(CreateDirectories(output));
  WrittenReport written{.path = fmt::format("{}/{}.md", output, name),
                        .missed_bars = report.missed()};
  json all = {{"notes", notes},
              {"torch", results.torch},
              {"gpu_states", results.gpu_states},
              {"parts", json::array()}};
  for (const PartReport& part : parts) {
    all["parts"].push_back(part.ToJson());
    written.failed_parts += Failed(part) ? 1 : 0;
  }
  for (const PartBar& bar : results.bars) {
    written.bars_not_measured += bar.measured ? 0 : 1;
  }
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(
      written.path,
      report.Markdown("A worker on a GPU", fmt::format("{}", fmt::join(notes, "\n\n")))));
  SHOAL_RETURN_IF_ERROR(
      WriteFileAtomically(fmt::format("{}/{}.json", output, name), all.dump(1) + "\n"));
  return written;
}

std::string ShortTable(const GpuResults& results) {
  std::string text;
  for (const PartReport& part : results.parts) {
    text += fmt::format("{:8} {:8} {:4.0f} s  {}\n", part.name(), StateName(part), part.seconds(),
                        part.why());
  }
  if (results.torch.contains("ended")) {
    text += fmt::format("torch: {}\n", results.torch["ended"].get<std::string>());
  }
  for (const PartBar& bar : results.bars) {
    text += fmt::format("{:12} {}: {} ({})\n", bar.state(), bar.what, bar.found, bar.bar);
  }
  return text;
}

}  // namespace shoal::bench
