// Checks every operator against the CPU's on fresh random inputs (worker/ops/testing/check_ops.h).
#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/str_split.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/parts/op_checks.h"
#include "bench/gpu_check/report/bars.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

// Assumed for the first group.
constexpr absl::Duration kOfGroup = absl::Seconds(2);

// Keys of the report's values: the number of checks, and rows of those that failed.
constexpr char kChecks[] = "checks";
constexpr char kWrongChecks[] = "wrong_checks";
using Rows = std::vector<std::vector<std::string>>;

struct Group {
  int checks = 0;
  const worker::OpCheck* worst = nullptr;  // largest share of its bound
};

// "RmsNormForward bf16" of "RmsNormForward bf16 37x72".
std::string GroupOf(const worker::OpCheck& check) {
  const std::vector<std::string> words = absl::StrSplit(check.name, ' ');
  return words.size() < 2 ? check.name : words[0] + " " + words[1];
}

// Adds to their names how the operators ran.
std::vector<worker::OpCheck> Named(std::vector<worker::OpCheck> checks, const char* how) {
  for (worker::OpCheck& check : checks) {
    check.name.insert(check.name.find(' '), how);
  }
  return checks;
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
  auto wrong = report.values().value(kWrongChecks, Rows());
  for (const worker::OpCheck& check : checks) {
    if (!check.passed()) {
      wrong.push_back({check.name, fmt::format("{:.1e}", check.error),
                       fmt::format("{:.1e}", check.bound), check.wrong});
    }
  }
  report.SetValue(kWrongChecks, std::move(wrong));
  report.SetValue(kChecks, report.values().value(kChecks, size_t{0}) + checks.size());
}

int AddOpsEnd(const std::string& left_out, PartReport& report) {
  const auto all = report.values().value(kChecks, size_t{0});
  const auto wrong = report.values().value(kWrongChecks, Rows());
  const std::string found = fmt::format("{} of {}", all - wrong.size(), all);
  report.AddBar(wrong.empty() && !left_out.empty()
                    ? OpsBar().NotMeasured(fmt::format("{}, and then {}", found, left_out))
                    : OpsBar().Found(found, wrong.empty()));
  if (!wrong.empty()) {
    report.AddTable("Operators that are wrong", "", {"check", "error", "bound", "what"});
    for (const std::vector<std::string>& row : wrong) {
      report.AddRow(row);
    }
  }
  return static_cast<int>(wrong.size());
}

absl::Status RunOpsPart(PartRun& run) {
  SHOAL_ASSIGN_OR_RETURN(worker::ComputeDevice compute_device, run.options().make_device(0));
  worker::ComputeDevice oracle = worker::MakeCpuComputeDevice();
  run.report().AddTable(
      "Operators against the CPU's",
      fmt::format("Random inputs of seed {}; outputs poisoned with NaN before each call; each runs "
                  "twice and must give the same bits, but where it may add in any order. Errors "
                  "are relative to the larger of the "
                  "expected value and the root mean square of all; the servers' kernels are to "
                  "give the CPU's bits.",
                  run.options().seed),
      {"operator", "checks", "worst", "error", "bound", ""});
  // First group: the servers' kernels. Second: attention in any order and tuned products, as jobs
  // have both. Third: our own kernels in place of the libraries'.
  int64_t next = run.options().from;
  bool lost = false;
  std::string left_out;
  const auto found = [&](const std::vector<worker::OpCheck>& checks) {
    AddOpRows(checks, run.report());
    lost = !std::ranges::all_of(checks, &worker::OpCheck::passed) && run.IsLostAt(next);
    ++next;
    if (!lost && !run.HasTimeFor(kOfGroup)) {
      left_out = "no time was left";
    }
    return !lost && left_out.empty();
  };
  bool goes_on = true;
  if (const FlatKernels* const flat = run.options().flat; next == 0 && flat != nullptr) {
    goes_on = found(CheckFlatKernels(*compute_device.device, compute_device.ops->stream(), *flat,
                                     run.options().seed, run.sizes().flat_checks));
  }
  next = std::max<int64_t>(next, 1);
  if (goes_on && next == 1 && run.options().make_any_order_device) {
    SHOAL_ASSIGN_OR_RETURN(const worker::ComputeDevice any_order, run.MakeTrainingDevice());
    const auto check = [&](auto* checks_of, const char* how) {
      return Named(checks_of(*any_order.device, *any_order.ops, *oracle.ops, run.options().seed,
                             run.sizes().op_checks),
                   how);
    };
    std::vector<worker::OpCheck> checks = check(worker::CheckAttentionInAnyOrder, "InAnyOrder");
    std::ranges::move(check(worker::CheckMatmuls, "Tuned"), std::back_inserter(checks));
    goes_on = found(checks);
  }
  next = std::max<int64_t>(next, 2);
  if (goes_on && next == 2 && run.options().make_own_kernels_device) {
    SHOAL_ASSIGN_OR_RETURN(const worker::ComputeDevice own,
                           run.options().make_own_kernels_device());
    goes_on = found(Named(worker::CheckProducts(*own.device, *own.ops, *oracle.ops,
                                                run.options().seed, run.sizes().op_checks),
                          "ByOwnKernels"));
  }
  if (goes_on) {
    next = std::max<int64_t>(next, 3);
    CheckOps(*compute_device.device, *compute_device.ops, *oracle.ops, run.options().seed,
             run.sizes().op_checks, found, next - 3);
  }
  if (lost) {
    return absl::AbortedError("the device is lost");
  }
  const int failed = AddOpsEnd(left_out, run.report());
  return failed == 0 ? absl::OkStatus() : Internal("{} checks of operators failed", failed);
}

}  // namespace shoal::bench
