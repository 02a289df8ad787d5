#include "bench/gpu/gpu_report.h"

#include <algorithm>
#include <optional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/gpu/parts.h"
#include "common/file.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using nlohmann::json;

// Of PyTorch's tokens/s.
constexpr double kWanted = 1.1;

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

// Shoal's and PyTorch's figures of one case; either may be missing.
struct Compared {
  std::string shape;
  int64_t tokens = 0;
  std::optional<double> ours;
  std::optional<double> without_optimizer;
  std::optional<double> whole_step;
  std::string note;

  double ratio() const { return *ours / *without_optimizer; }
  bool both() const { return ours && without_optimizer; }
};

std::vector<Compared> Compare(const std::vector<PartReport>& parts, const json& torch) {
  std::vector<Compared> all;
  for (const json& c : torch.value("cases", json::array())) {
    Compared& compared = all.emplace_back();
    compared.shape = c.value("shape", "");
    compared.tokens = c.value("tokens", int64_t{0});
    compared.note = c.value("error", "");
    if (c.contains("tokens_per_second")) {
      compared.whole_step = c["tokens_per_second"].get<double>();
      compared.without_optimizer = c["tokens_per_second_without_optimizer"].get<double>();
    }
  }
  const auto train = std::find_if(parts.begin(), parts.end(),
                                  [](const PartReport& part) { return part.name() == "train"; });
  if (train == parts.end()) {
    return all;
  }
  for (const json& c : train->values().value("cases", json::array())) {
    for (Compared& compared : all) {
      if (compared.shape == c["shape"] && compared.tokens == c["tokens"]) {
        compared.ours = c["tokens_per_second"].get<double>();
      }
    }
  }
  return all;
}

std::string Rate(const std::optional<double>& value) {
  return value ? fmt::format("{:.0f}", *value) : "-";
}

}  // namespace

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
  if (!text.ok()) {
    return {{"skipped", "it was not run"}};
  }
  json torch = json::parse(*text, nullptr, false);
  return torch.is_object() ? torch : json{{"skipped", "torch.json is no JSON object"}};
}

void AddParts(const std::vector<PartReport>& parts, Report& report) {
  std::vector<std::vector<std::string>> states = {{"part", "state", "seconds", ""}};
  for (const PartReport& part : parts) {
    states.push_back({part.name(), std::string(StateName(part)),
                      fmt::format("{:.0f}", part.seconds()), part.why()});
    for (const PartBar& bar : part.bars()) {
      report.Bar(bar.what, bar.bar, bar.found, bar.met);
    }
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

void AddTorch(const std::vector<PartReport>& parts, const json& torch, Report& report) {
  report.Heading("Beside PyTorch");
  if (torch.contains("skipped")) {
    report.Paragraph("Not measured: " + torch["skipped"].get<std::string>() + ".");
    return;
  }
  report.Paragraph(fmt::format(
      "`torch_baseline.py`, torch {} on {}: bf16, {}, {}, gradients in bf16, fused AdamW. "
      "The ratio is of forward and backward, without the optimizer on either side.",
      torch.value("torch", "?"), torch.value("device", "?"), torch.value("attention", "?"),
      torch.value("compiled", false) ? "torch.compile" : "not compiled"));
  std::vector<std::vector<std::string>> rows = {{"shape", "tokens", "Shoal, tokens/s",
                                                 "PyTorch, tokens/s", "with its optimizer",
                                                 "Shoal / PyTorch", "note"}};
  for (const Compared& c : Compare(parts, torch)) {
    rows.push_back({c.shape, fmt::format("{}", c.tokens), Rate(c.ours), Rate(c.without_optimizer),
                    Rate(c.whole_step), c.both() ? Ratio(c.ratio()) : "-", c.note});
    if (c.both()) {
      report.Bar(fmt::format("{} at {} tokens beside PyTorch", c.shape, c.tokens),
                 fmt::format("at least {:.1f}", kWanted), Ratio(c.ratio()), c.ratio() >= kWanted);
    }
  }
  report.Table(rows);
}

absl::StatusOr<WrittenReport> WriteGpuReport(const std::string& folder, const std::string& output,
                                             const std::vector<std::string>& notes,
                                             std::span<const Part> chosen) {
  const std::vector<PartReport> parts = LoadParts(folder, chosen);
  const json torch = LoadTorch(folder);
  const std::string name = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()) + "-gpu";
  Report report(name);
  AddParts(parts, report);
  AddTorch(parts, torch, report);
  SHOAL_RETURN_IF_ERROR(CreateDirectories(output));
  WrittenReport written{.path = fmt::format("{}/{}.md", output, name),
                        .missed_bars = report.missed()};
  json all = {{"notes", notes}, {"torch", torch}, {"parts", json::array()}};
  for (const PartReport& part : parts) {
    all["parts"].push_back(part.ToJson());
    written.failed_parts += Failed(part) ? 1 : 0;
  }
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(
      written.path,
      report.Markdown("A worker on a GPU", fmt::format("{}", fmt::join(notes, "\n\n")))));
  SHOAL_RETURN_IF_ERROR(
      WriteFileAtomically(fmt::format("{}/{}.json", output, name), all.dump(1) + "\n"));
  return written;
}

std::string ShortTable(const std::vector<PartReport>& parts, const json& torch) {
  std::string text;
  for (const PartReport& part : parts) {
    text += fmt::format("{:8} {:8} {:4.0f} s  {}\n", part.name(), StateName(part), part.seconds(),
                        part.why());
  }
  for (const PartReport& part : parts) {
    for (const PartBar& bar : part.bars()) {
      text += fmt::format("{:6} {}: {} ({})\n", bar.met ? "met" : "MISSED", bar.what, bar.found,
                          bar.bar);
    }
  }
  if (torch.contains("skipped")) {
    return text + fmt::format("torch skipped: {}\n", torch["skipped"].get<std::string>());
  }
  for (const Compared& c : Compare(parts, torch)) {
    if (c.both()) {
      text += fmt::format("{:6} {} at {} tokens: {:.2f} of PyTorch ({:.1f})\n",
                          c.ratio() >= kWanted ? "met" : "MISSED", c.shape, c.tokens, c.ratio(),
                          kWanted);
    }
  }
  return text;
}

}  // namespace shoal::bench
