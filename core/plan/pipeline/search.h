// The search for the fastest candidate that fits: each is looked at more and more closely for as
// long as it could still be the best.
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
  kCompute,    // its compute alone
  kTimed,      // simulated with nothing offloaded, and that does not fit
  kFitting,    // simulated with as much offloaded as it needs, over the first microbatches
  kSimulated,  // over the whole step, and it fits
  kRefused,    // it does not fit, whatever is offloaded
};

struct Searched {
  PipelineChoice choice;
  Knowledge knowledge = Knowledge::kCompute;
  double seconds = 0;  // the step takes no less; with kSimulated this is what it takes
  double copy_ratio = 0;
  Measured measured;  // the last; without bytes where nothing was simulated
  int tries = 0;      // whole simulations that did not fit
};

// In the order of VariantsOf. `winner`: the place of the fastest that fits, none where nothing
// does.
struct SearchResult {
  std::vector<Searched> candidates;
  std::optional<size_t> winner;
};

absl::StatusOr<SearchResult> SearchPipelines(const PipelineRequest& request,
                                             std::vector<Variant> variants);

}  // namespace shoal::plan
