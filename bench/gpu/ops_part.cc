// Every operator against the CPU's on fresh random inputs (worker/ops/testing/check_ops.h).
#include <map>

#include "absl/strings/str_split.h"
#include "bench/gpu/op_checks.h"
#include "bench/gpu/parts.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

struct Group {
  int checks = 0;
  const worker::OpCheck* worst = nullptr;  // by its share of the bound
};

// "RmsNormForward bf16" of "RmsNormForward bf16 37x72".
std::string GroupOf(const worker::OpCheck& check) {
  const std::vector<std::string> words = absl::StrSplit(check.name, ' ');
  return words.size() < 2 ? check.name : words[0] + " " + words[1];
}

bool IsWorse(const worker::OpCheck& a, const worker::OpCheck& b) {
  if (a.passed() != b.passed()) {
    return !a.passed();
  }
  return a.error * b.bound > b.error * a.bound;
}

}  // namespace

int AddOpChecks(const std::vector<worker::OpCheck>& checks, PartReport& report) {
  std::map<std::string, Group> groups;
  std::vector<const worker::OpCheck*> failed;
  for (const worker::OpCheck& check : checks) {
    Group& group = groups[GroupOf(check)];
    ++group.checks;
    if (group.worst == nullptr || IsWorse(check, *group.worst)) {
      group.worst = &check;
    }
    if (!check.passed()) {
      failed.push_back(&check);
    }
  }
  for (const auto& [name, group] : groups) {
    report.AddRow({name, fmt::format("{}", group.checks), group.worst->name,
                   fmt::format("{:.1e}", group.worst->error),
                   fmt::format("{:.1e}", group.worst->bound),
                   group.worst->passed() ? "right" : "**wrong**"});
  }
  if (!failed.empty()) {
    report.AddTable("Operators that are wrong", "", {"check", "error", "bound", "what"});
    for (const worker::OpCheck* check : failed) {
      report.AddRow({check->name, fmt::format("{:.1e}", check->error),
                     fmt::format("{:.1e}", check->bound), check->wrong});
    }
  }
  report.AddBar({"operators against the CPU's", "all within their bounds",
                 fmt::format("{} of {}", checks.size() - failed.size(), checks.size()),
                 failed.empty()});
  return static_cast<int>(failed.size());
}

absl::Status RunOpsPart(PartRun& run) {
  SHOAL_ASSIGN_OR_RETURN(worker::Machine machine, run.options().make_machine(0));
  worker::Machine oracle = worker::MakeCpuMachine();
  run.report().AddTable(
      "Operators against the CPU's",
      fmt::format("Random inputs of seed {}; outputs poisoned with NaN before each call; each runs "
                  "twice and must give the same bits. Errors are relative to the larger of the "
                  "expected value and the root mean square of all.",
                  run.options().seed),
      {"operator", "checks", "worst", "error", "bound", ""});
  const std::vector<worker::OpCheck> checks = CheckOps(*machine.device, *machine.ops, *oracle.ops,
                                                       run.options().seed, run.sizes().op_checks);
  const int failed = AddOpChecks(checks, run.report());
  return failed == 0 ? absl::OkStatus() : Internal("{} checks of operators failed", failed);
}

}  // namespace shoal::bench
