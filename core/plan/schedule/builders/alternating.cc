// Schedules whose stages run some forwards ahead and then alternate: 1F1B, its interleaved form,
// GIS and, with all forwards ahead, GPipe.
#include <algorithm>

#include "core/base/check.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/pattern.h"
#include "fmt/format.h"

namespace shoal::plan {
namespace {

struct PassItem {
  int chunk = 0;
  int microbatch = 0;
};

// Groups of `group` microbatches; in each group the chunks in turn (the last first for `backward`),
// in each chunk the group's microbatches. The last group is whole too, including microbatches that
// do not exist.
std::vector<PassItem> GroupedPass(const ScheduleShape& shape, int group, bool backward) {
  std::vector<PassItem> items;
  for (int first = 0; first < shape.microbatches; first += group) {
    for (int turn = 0; turn < shape.chunks; ++turn) {
      for (int n = first; n < first + group; ++n) {
        items.push_back({.chunk = backward ? shape.chunks - 1 - turn : turn, .microbatch = n});
      }
    }
  }
  return items;
}

// Builds each stage's list: the first `ahead(stage)` forwards, then alternately backward and
// forward, without the items of microbatches that do not exist.
template <typename Ahead>
Schedule Alternating(std::string name, const ScheduleShape& shape, int group, bool split_backward,
                     const Ahead& ahead) {
  const std::vector<PassItem> forwards = GroupedPass(shape, group, /*backward=*/false);
  const std::vector<PassItem> backwards = GroupedPass(shape, group, /*backward=*/true);
  std::vector<StageActions> lists;
  for (int stage = 0; stage < shape.stages; ++stage) {
    StageActions& actions = lists.emplace_back();
    const auto add = [&](Operation operation, const PassItem& item) {
      if (item.microbatch < shape.microbatches) {
        actions.push_back({operation, item.chunk, item.microbatch});
      }
    };
    size_t next = 0;
    for (; next < std::min(forwards.size(), static_cast<size_t>(ahead(stage))); ++next) {
      add(Operation::kForward, forwards[next]);
    }
    for (const PassItem& item : backwards) {
      if (split_backward) {
        add(Operation::kBackwardInput, item);
        add(Operation::kBackwardWeights, item);
      } else {
        add(Operation::kBackward, item);
      }
      if (next < forwards.size()) {
        add(Operation::kForward, forwards[next++]);
      }
    }
  }
  return WithMessages(std::move(name), shape, std::move(lists));
}

}  // namespace

Schedule GPipe(int stages, int chunks, int microbatches) {
  return Alternating("GPipe", {stages, chunks, microbatches}, microbatches,
                     /*split_backward=*/false, [&](int) { return chunks * microbatches; });
}

Schedule OneForwardOneBackward(int stages, int microbatches) {
  return Alternating("1F1B", {stages, /*chunks=*/1, microbatches}, /*group=*/1,
                     /*split_backward=*/false, [&](int stage) { return stages - stage; });
}

Schedule InterleavedOneForwardOneBackward(int stages, int chunks, int microbatches) {
  return Alternating("1F1B-I", {stages, chunks, microbatches}, /*group=*/stages,
                     /*split_backward=*/false,
                     [&](int stage) { return stages * (chunks - 1) + 2 * (stages - stage) - 1; });
}

int SmallestGroup(int stages) { return (stages + 1) / 2; }

Schedule GroupedInterleaved(int stages, int chunks, int microbatches, int group) {
  SHOAL_CHECK(group >= SmallestGroup(stages) && group <= stages);
  std::string name = group == stages                  ? "GIS"
                     : group == SmallestGroup(stages) ? "GIS-H"
                                                      : fmt::format("GIS({})", group);
  return Alternating(std::move(name), {stages, chunks, microbatches}, group,
                     /*split_backward=*/true,
                     [&](int stage) { return group * (chunks - 1) + stages - stage; });
}

Schedule ForwardAlone(const ScheduleShape& shape) {
  // In ticks of one forward each; of what a stage could run, what is nearest to its end.
  std::vector<StageActions> stages(static_cast<size_t>(shape.stages));
  std::vector<int> done(static_cast<size_t>(shape.VirtualStages()));  // microbatches
  const auto place = [&](const std::vector<int>& before, int stage) {
    StageActions& actions = stages[static_cast<size_t>(stage)];
    for (int chunk = shape.chunks - 1; chunk >= 0; --chunk) {
      const auto here = static_cast<size_t>(shape.VirtualStageOf(stage, chunk));
      const int microbatch = done[here];
      if (microbatch < (here == 0 ? shape.microbatches : before[here - 1])) {
        ++done[here];
        actions.push_back({Operation::kForward, chunk, microbatch});
        actions.push_back({Operation::kRelease, chunk, microbatch});
        return;
      }
    }
  };
  while (done.back() < shape.microbatches) {
    const std::vector<int> before = done;
    for (int stage = 0; stage < shape.stages; ++stage) {
      place(before, stage);
    }
  }
  Schedule schedule = WithMessages("forward alone", shape, std::move(stages));
  schedule.evaluates = true;
  return schedule;
}

Schedule GradientAccumulation(int chunks, int microbatches) {
  StageActions actions;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      actions.push_back({Operation::kForward, chunk, microbatch});
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      actions.push_back({Operation::kBackward, chunk, microbatch});
    }
  }
  return WithMessages("accumulation", {1, chunks, microbatches}, {actions});
}

}  // namespace shoal::plan
