// How a minibatch's samples are assigned to workers, and when workers wait for each other: the
// choices of ODC (arXiv 2601.19362), its baselines, and two more. core/plan/step/step_plan.h
// carries them out.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace shoal::plan {

enum class Assignment {
  kAuto,           // lb-mini with step synchronisation, lb-micro with layer
  kNative,         // samples dealt out in turn, in the order drawn, one per microbatch
  kLocalSort,      // same as native, each worker's sorted by length
  kLbMicro,        // equal sample counts balanced by cost, then the same number of balanced
                   // microbatches on every worker
  kLbMini,         // balanced only by cost, each worker packs for itself
  kSpeedWeighted,  // lb-mini with each worker's measured speed in the balance
  kDynamic,        // planned as lb-mini; workers draw pack after pack, and take over what a slower
                   // one would come to later
};

// When workers wait for each other.
enum class Synchronization {
  kStep,   // on demand: only at the end of the step
  kLayer,  // as in collective sharded training: every get and push of a layer waits for all
};

// The source of costs.
enum class CostSource {
  kFlops,   // the model's shape
  kTokens,  // every token costs the same
  kFitted,  // measured microbatches of this run; FLOPs until there are enough
};

inline constexpr std::array<std::pair<std::string_view, Assignment>, 7> kAssignmentNames = {
    {{"auto", Assignment::kAuto},
     {"native", Assignment::kNative},
     {"local-sort", Assignment::kLocalSort},
     {"lb-micro", Assignment::kLbMicro},
     {"lb-mini", Assignment::kLbMini},
     {"speed-weighted", Assignment::kSpeedWeighted},
     {"dynamic", Assignment::kDynamic}}};
inline constexpr std::array<std::pair<std::string_view, Synchronization>, 2> kSynchronizationNames =
    {{{"step", Synchronization::kStep}, {"layer", Synchronization::kLayer}}};

std::string_view Name(Assignment assignment);
std::string_view Name(Synchronization synchronization);
// Resolves kAuto; returns anything else unchanged.
Assignment Resolved(Assignment assignment, Synchronization synchronization);

}  // namespace shoal::plan
