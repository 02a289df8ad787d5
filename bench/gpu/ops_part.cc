// Every operator against the CPU's on fresh random inputs (worker/ops/testing/check_ops.h).
#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/str_split.h"
#include "bench/gpu/bars.h"
#include "bench/gpu/op_checks.h"
#include "bench/gpu/parts.h"
#include "common/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

// Of the checks that come next.
constexpr absl::Duration kOfGroup = absl::Seconds(2);

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

void AddOpRows(const std::vector<worker::OpCheck>& checks, PartReport& report) {
  std::map<std::string, Group> groups;
  for (const worker::OpCheck& check : checks) {
    Group& group = groups[GroupOf(check)];
    ++group.checks;
    if (group.worst == nullptr || IsWorse(check, *group.worst)) {
      group.worst = &check;
    }
  }
  for (const auto& [name, group] : groups) {
    report.AddRow({name, fmt::format("{}", group.checks), group.worst->name,
                   fmt::format("{:.1e}", group.worst->error),
                   fmt::format("{:.1e}", group.worst->bound),
                   group.worst->passed() ? "right" : "**wrong**"});
  }
}

int AddOpsEnd(const std::vector<worker::OpCheck>& checks, const std::string& left_out,
              PartReport& report) {
  const auto failed = static_cast<int>(
      std::ranges::count_if(checks, [](const worker::OpCheck& c) { return !c.passed(); }));
  const std::string found =
      fmt::format("{} of {}", checks.size() - static_cast<size_t>(failed), checks.size());
  report.AddBar(failed == 0 && !left_out.empty()
                    ? OpsBar().NotMeasured(fmt::format("{}, and then {}", found, left_out))
                    : OpsBar().Found(found, failed == 0));
  if (failed > 0) {
    report.AddTable("Operators that are wrong", "", {"check", "error", "bound", "what"});
    for (const worker::OpCheck& check : checks) {
      if (!check.passed()) {
        report.AddRow({check.name, fmt::format("{:.1e}", check.error),
                       fmt::format("{:.1e}", check.bound), check.wrong});
      }
    }
  }
  return failed;
}

absl::Status RunOpsPart(PartRun& run) {
  SHOAL_ASSIGN_OR_RETURN(worker::Machine machine, run.options().make_machine(0));
  worker::Machine oracle = worker::MakeCpuMachine();
  run.report().AddTable(
      "Operators against the CPU's",
      fmt::format("Random inputs of seed {}; outputs poisoned with NaN before each call; each runs "
                  "twice and must give the same bits. Errors are relative to the larger of the "
                  "expected value and the root mean square of all; the servers' kernels are to "
                  "give the CPU's bits.",
                  run.options().seed),
      {"operator", "checks", "worst", "error", "bound", ""});
  std::vector<worker::OpCheck> all;
  std::string left_out;
  const auto found = [&](std::vector<worker::OpCheck> checks) {
    AddOpRows(checks, run.report());
    std::ranges::move(checks, std::back_inserter(all));
    if (!run.HasTimeFor(kOfGroup)) {
      left_out = "no time was left";
    }
    return left_out.empty();
  };
  if (const FlatKernels* const flat = run.options().flat; flat != nullptr) {
    found(CheckFlatKernels(*machine.device, machine.ops->stream(), *flat, run.options().seed,
                           run.sizes().flat_checks));
  }
  CheckOps(*machine.device, *machine.ops, *oracle.ops, run.options().seed, run.sizes().op_checks,
           found);
  const int failed = AddOpsEnd(all, left_out, run.report());
  return failed == 0 ? absl::OkStatus() : Internal("{} checks of operators failed", failed);
}

}  // namespace shoal::bench
