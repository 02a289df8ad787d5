// The methods compared: ways to assign and to synchronise.
#pragma once

#include <array>
#include <string>

#include "core/sim/comparison.h"
#include "fmt/format.h"

namespace shoal::bench {

inline std::string NameOf(const sim::Choice& choice) {
  return fmt::format("{}, {}", plan::Name(choice.synchronization), plan::Name(choice.assignment));
}

struct Method {
  sim::Choice choice;
  const char* colour;  // in charts
  bool dashed;         // in charts: workers wait at layers
  double width;        // in charts, of the line
  bool in_grid;        // emulated in every config

  bool is_baseline() const { return choice == sim::kBaseline; }
  std::string Name() const { return NameOf(choice) + (is_baseline() ? " (baseline)" : ""); }
};

inline constexpr sim::Choice kLbMini = {plan::Synchronization::kStep, plan::Assignment::kLbMini};

// Index into kMethods.
inline constexpr size_t kBaselineMethod = 1;
inline constexpr std::array<Method, 6> kMethods = {{
    {{plan::Synchronization::kLayer, plan::Assignment::kLocalSort}, "#8c959f", true, 2, true},
    {sim::kBaseline, "#24292f", true, 2, true},
    {{plan::Synchronization::kStep, plan::Assignment::kLbMicro}, "#e69f00", false, 2, true},
    {kLbMini, "#0072b2", false, 5, true},
    // Same as lb-mini if all devices have one speed.
    {{plan::Synchronization::kStep, plan::Assignment::kSpeedWeighted}, "#009e73", false, 2, false},
    {{plan::Synchronization::kStep, plan::Assignment::kDynamic}, "#d55e00", false, 2, true},
}};

}  // namespace shoal::bench
