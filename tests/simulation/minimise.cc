#include "tests/simulation/minimise.h"

#include <algorithm>

#include "core/base/check.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace shoal::simulation {
namespace {

constexpr int kMaxRuns = 20000;

// "I3" of "I3: step 2 of ...": what must stay for a run to fail in the same way.
std::string KindOf(const std::string& violation) {
  return violation.substr(0, std::min(violation.find(':'), size_t{12}));
}

class Search {
 public:
  Search(const Scenario& scenario, const Outcome& outcome)
      : kind_(KindOf(outcome.violations.front())),
        best_{.scenario = scenario, .faults = outcome.faults, .violations = outcome.violations} {}

  // Takes a smaller run if it still fails; returns whether it does.
  bool Try(const Scenario& scenario, const std::vector<Fault>& faults) {
    if (++best_.runs > kMaxRuns) {
      return false;
    }
    const Outcome outcome = RunScenario(scenario, faults);
    const bool fails = std::ranges::any_of(
        outcome.violations, [&](const std::string& found) { return KindOf(found) == kind_; });
    if (fails) {
      best_.scenario = scenario;
      best_.faults = outcome.faults;  // what did not happen is not needed
      best_.violations = outcome.violations;
    }
    return fails;
  }

  // Leaves out ever smaller parts (Zeller's ddmin, by complements).
  void FewerFaults() {
    size_t parts = 2;
    while (!best_.faults.empty() && parts <= 2 * best_.faults.size()) {
      const std::vector<Fault> faults = best_.faults;
      const size_t size = std::max<size_t>(1, faults.size() / parts);
      bool smaller = false;
      for (size_t begin = 0; begin < faults.size() && !smaller; begin += size) {
        std::vector<Fault> rest(faults.begin(), faults.begin() + static_cast<long>(begin));
        rest.insert(rest.end(),
                    faults.begin() + static_cast<long>(std::min(begin + size, faults.size())),
                    faults.end());
        smaller = Try(best_.scenario, rest);
      }
      if (!smaller && size == 1) {
        return;
      }
      parts = smaller ? std::max<size_t>(2, parts - 1) : parts * 2;
    }
  }

  template <typename Number>
  bool Lower(Number SimOptions::*field, Number least, Number step) {
    bool any = false;
    while (best_.scenario.options.*field - step >= least) {
      Scenario smaller = best_.scenario;
      smaller.options.*field -= step;
      if (!Try(smaller, best_.faults)) {
        break;
      }
      any = true;
    }
    return any;
  }

  bool SmallerOptions() {
    bool any = false;
    for (bool SimOptions::*flag :
         {&SimOptions::draw, &SimOptions::layer, &SimOptions::exact, &SimOptions::trace,
          &SimOptions::stays, &SimOptions::read_replicas}) {
      Scenario without = best_.scenario;
      if (without.options.*flag) {
        without.options.*flag = false;
        any = Try(without, best_.faults) || any;
      }
    }
    for (double SimOptions::*rate :
         {&SimOptions::repeated_report, &SimOptions::failed_report, &SimOptions::slow_worker,
          &SimOptions::early_report, &SimOptions::checkpoint_seconds}) {
      Scenario without = best_.scenario;
      if (without.options.*rate > 0) {
        without.options.*rate = 0;
        any = Try(without, best_.faults) || any;
      }
    }
    const int stages = best_.scenario.options.stages;
    any = Lower(&SimOptions::jobs, 1, 1) || any;
    any = Lower(&SimOptions::spares, 0, 1) || any;
    any = Lower(&SimOptions::workers, stages, stages) || any;
    any = Lower(&SimOptions::servers, 1, 1) || any;
    any = Lower<int64_t>(&SimOptions::steps, 1, 1) || any;
    any = Lower<int64_t>(&SimOptions::samples, 1, 1) || any;
    return Lower<int64_t>(&SimOptions::checkpoint_every, 0, 1) || any;
  }

  const Minimised& best() const { return best_; }

 private:
  const std::string kind_;
  Minimised best_;
};

}  // namespace

Minimised Minimise(const Scenario& scenario) {
  const Outcome outcome = RunScenario(scenario);
  SHOAL_CHECK(!outcome.violations.empty());
  Search search(scenario, outcome);
  do {
    search.FewerFaults();
  } while (search.SmallerOptions());
  return search.best();
}

std::string ToTest(const Minimised& minimised) {
  const Scenario& scenario = minimised.scenario;
  std::string faults;
  for (const Fault& fault : minimised.faults) {
    faults += fmt::format("       {},\n", ToCode(fault));
  }
  std::string quiet;
  if (scenario.quiet_from.has_value()) {
    quiet = fmt::format(", .quiet_from = {}", *scenario.quiet_from);
  }
  return fmt::format(
      "TEST(FoundTest, Seed{}) {{\n"
      "  const Outcome outcome = RunScenario(\n"
      "      {{.options = {}{}}},\n"
      "      {{\n{}      }});\n"
      "  EXPECT_THAT(outcome.violations, IsEmpty());  // {}\n"
      "}}\n",
      scenario.options.seed, ToCode(scenario.options), quiet, faults, minimised.violations.front());
}

}  // namespace shoal::simulation
