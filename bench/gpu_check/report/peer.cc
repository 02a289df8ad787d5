#include "bench/gpu_check/report/peer.h"

#include <algorithm>
#include <optional>

#include "bench/gpu_check/report/bars.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

using nlohmann::json;

// Differences, in either direction.
constexpr const char* kFairness =
    "What is unlike. Shoal adds gradients up in fp32 and keeps fp32 master weights and moments: "
    "its "
    "optimizer moves 30 bytes a parameter and step. PyTorch's in bf16 alone moves 14 and loses "
    "updates that are small beside their weight; with fp32 masters and moments, as FSDP's mixed "
    "precision has them, it turns bf16 gradients into fp32, updates the masters and rounds them to "
    "the weights in passes of their own: 40 bytes. To Shoal's disadvantage: it reads the loss back "
    "in each step. To PyTorch's: a plain module, blocks and loss compiled one by one and not the "
    "whole model, no CUDA graphs, one SDPA backend, a loss whose logits are made in chunks where "
    "they are large. Both wait for each step's end, so what the host takes to start it counts.";

const PartReport* Find(const std::vector<PartReport>& parts, std::string_view name) {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const auto& part) { return part.name() == name; });
  return found == parts.end() ? nullptr : &*found;
}

// The case's entry in a list; empty if there is none.
json CaseIn(const json& list, const std::string& name) {
  for (const json& c : list) {
    if (c.value("case", "") == name) {
      return c;
    }
  }
  return json::object();
}

// The optimizer's figures of a case; empty if there are none.
json TheirsOf(const json& c, PeerOptimizer optimizer) {
  return optimizer == PeerOptimizer::kBf16 ? c : c.value("fp32_masters", json::object());
}

json OursOf(const std::vector<PartReport>& parts, const std::string& name) {
  const PartReport* const train = Find(parts, "train");
  return train == nullptr ? json::object()
                          : CaseIn(train->values().value("cases", json::array()), name);
}

double RateOf(const json& c, const char* key = "tokens_per_second") { return c.value(key, 0.0); }

std::string Rate(double value) { return value > 0 ? fmt::format("{:.0f}", value) : "-"; }

std::string RatioOf(double ours, double theirs) {
  return ours > 0 && theirs > 0 ? Ratio(ours / theirs) : "-";
}

// Says which of the two is missing, and why.
std::string WhyNot(const json& ours, const json& theirs, const json& torch) {
  if (RateOf(ours) <= 0) {
    return "Shoal: " + ours.value("left_out", ours.empty() ? "not run" : "without the optimizer");
  }
  if (torch.contains("skipped")) {
    return "PyTorch: " + torch["skipped"].get<std::string>();
  }
  return "PyTorch: " + theirs.value("error", torch.value("ended", "it did not come to this case"));
}

std::string Ms(const json& c, const char* key) {
  return c.contains(key) ? fmt::format("{:.2f}", 1e3 * c[key].get<double>()) : "-";
}

std::string PeakOf(const json& c) {
  const int64_t peak = c.value("peak_bytes", int64_t{0});
  return peak > 0 ? fmt::format("{:.1f} GiB", static_cast<double>(peak) / (1 << 30)) : "-";
}

std::string NoteOf(const json& c, const json& with_masters) {
  if (c.contains("error")) {
    return c["error"].get<std::string>();
  }
  std::string note = c.value("note", "");
  if (with_masters.contains("error")) {
    note += (note.empty() ? "" : "; ") + ("with fp32 masters: " + with_masters.value("error", ""));
  }
  return note;
}

void AddAttention(const std::vector<PartReport>& parts, const json& torch, Report& report) {
  if (!torch.contains("attention_cases")) {
    return;
  }
  const PartReport* const kernels = Find(parts, "kernels");
  const json ours =
      kernels == nullptr ? json::array() : kernels->values().value("attention", json::array());
  report.Heading("Attention beside PyTorch's kernels");
  report.Paragraph("Forward and backward in milliseconds, bf16, the same sequences; not compiled.");
  std::vector<std::vector<std::string>> rows = {{"case", "kernel", "forward, ms", "backward, ms"}};
  for (const json& size : ours) {
    const std::string by = size.value("backward_by", "");
    rows.push_back({size.value("case", ""), by.empty() ? "Shoal" : "Shoal, backward by " + by,
                    Ms(size, "forward_seconds"), Ms(size, "backward_seconds")});
    for (const json& theirs : torch["attention_cases"]) {
      if (theirs.value("case", "") == size.value("case", "")) {
        rows.push_back({"", "SDPA, " + theirs.value("backend", "?"), Ms(theirs, "forward_seconds"),
                        theirs.contains("error") ? theirs["error"].get<std::string>()
                                                 : Ms(theirs, "backward_seconds")});
      }
    }
  }
  report.Table(rows);
}

}  // namespace

PartBar PeerBarOf(const std::string& case_name, PeerOptimizer optimizer,
                  const std::vector<PartReport>& parts, const json& torch) {
  const WantedBar bar = PeerBar(case_name, optimizer);
  const json ours = OursOf(parts, case_name);
  const json measured = CaseIn(torch.value("cases", json::array()), case_name);
  const json theirs = measured.contains("error") ? measured : TheirsOf(measured, optimizer);
  if (RateOf(ours) <= 0 || RateOf(theirs) <= 0) {
    return bar.NotMeasured(WhyNot(ours, theirs, torch));
  }
  const double ratio = RateOf(ours) / RateOf(theirs);
  return bar.Found(Ratio(ratio), ratio >= kPeerRatio);
}

void AddPeer(const std::vector<PartReport>& parts, const json& torch, Report& report) {
  report.Heading("Beside PyTorch");
  if (torch.contains("skipped")) {
    report.Paragraph("Not measured: " + torch["skipped"].get<std::string>() + ".");
    return;
  }
  report.Paragraph(fmt::format(
      "`torch_baseline.py`, torch {} on {}: bf16, {}, {}, fused AdamW. The ratio that counts is of "
      "whole steps, with the optimizer on both sides. {}",
      torch.value("torch", "?"), torch.value("device", "?"), torch.value("attention", "?"),
      torch.value("compiled", false) ? "torch.compile" : "not compiled", kFairness));
  if (torch.contains("ended")) {
    report.Paragraph("It did not come to its end: " + torch["ended"].get<std::string>() + ".");
  }
  constexpr const char* kWithout = "tokens_per_second_without_optimizer";
  std::vector<std::vector<std::string>> rows = {
      {"case", "Shoal, tokens/s", "PyTorch, bf16 alone", "Shoal / PyTorch", "with fp32 masters",
       "Shoal / PyTorch", "without optimizer, Shoal", "PyTorch", "Shoal / PyTorch",
       "PyTorch's memory, peak", "note"}};
  for (const json& theirs : torch.value("cases", json::array())) {
    const std::string name = theirs.value("case", "");
    const json ours = OursOf(parts, name);
    const json masters = TheirsOf(theirs, PeerOptimizer::kFp32Masters);
    const double with = RateOf(ours), their_with = RateOf(theirs), with_masters = RateOf(masters);
    const double without = RateOf(ours, kWithout), their_without = RateOf(theirs, kWithout);
    rows.push_back({name, Rate(with), Rate(their_with), RatioOf(with, their_with),
                    Rate(with_masters), RatioOf(with, with_masters), Rate(without),
                    Rate(their_without), RatioOf(without, their_without),
                    PeakOf(theirs) + ", " + PeakOf(masters), NoteOf(theirs, masters)});
  }
  report.Table(rows);
  AddAttention(parts, torch, report);
}

}  // namespace shoal::bench
