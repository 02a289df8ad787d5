// Searches for the fastest candidate that fits: examines each more and more closely for as long as
// it could still be the best.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/pipeline/evaluation.h"
#include "core/plan/pipeline/planner.h"
#include "core/plan/pipeline/variants.h"

namespace shoal::plan {

enum class Knowledge : uint8_t {
  kCompute,    // only its compute is known
  kTimed,      // simulated with nothing offloaded, and it does not fit so
  kFitting,    // simulated with as much offloaded as it needs, over the first microbatches
  kSimulated,  // simulated over the whole step, and it fits
  kRefused,    // does not fit, whatever is offloaded
};

struct Searched {
  PipelineChoice choice;
  Knowledge knowledge = Knowledge::kCompute;
  double seconds = 0;  // lower bound of the step's time; with kSimulated the time itself
  double copy_ratio = 0;
  Measured measured;  // the last simulation; without bytes if there was none
  int tries = 0;      // whole simulations that did not fit
};

// In the order of VariantsOf. `winner`: index of the fastest that fits, none if nothing does.
struct SearchResult {
  std::vector<Searched> candidates;
  std::optional<size_t> winner;
};

absl::StatusOr<SearchResult> SearchPipelines(const PipelineRequest& request,
                                             std::vector<Variant> variants);

}  // namespace shoal::plan
