#include "plan/schedules/fill_gaps.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace shoal::plan {
namespace {

constexpr int64_t kNotYet = std::numeric_limits<int64_t>::max();

struct Preference {
  bool backward_first =
      false;  // where several actions are ready: B, F, W; else in the order of the list
  bool by_chunk =
      false;  // chunks overtake each other; else F, B and W each stay in the order of the list
};

struct Place {
  size_t place = 0;  // in the stage's list
  Action action;
};

// A stage's actions by kind (F, B or W of each chunk), each in the order of its list.
struct Kinds {
  std::vector<std::vector<Place>>
      of;  // B, F and W, the last chunk first: as tried where backwards go first
  std::vector<size_t> next;
  int held = 0;
  int most = 0;
};

// All stages slot by slot, every action one slot long.
class Slotted {
 public:
  Slotted(const ScheduleShape& shape, const std::vector<StageActions>& lists, Preference preference)
      : shape_(shape), preference_(preference), kinds_(shape.stages), result_(shape.stages) {
    forwards_.assign(static_cast<size_t>(shape.VirtualStages()) * shape.microbatches, kNotYet);
    backwards_ = forwards_;
    waits_.assign(shape.stages, 0);
    actions_of_stage_ = lists.front().size();
    for (int stage = 0; stage < shape.stages; ++stage) {
      kinds_[stage].most = PeakActivations(lists[stage]);
      kinds_[stage].of.resize(static_cast<size_t>(shape.chunks) * 3);
      kinds_[stage].next.resize(kinds_[stage].of.size());
      for (size_t i = 0; i < lists[stage].size(); ++i) {
        kinds_[stage].of[KindOf(lists[stage][i])].push_back({i, lists[stage][i]});
        ++left_;
      }
    }
  }

  // Nothing where the stages wait for ever. `waits`: the most slots between its first and last
  // action in which a stage did nothing.
  std::optional<std::vector<StageActions>> Run(int64_t& waits) {
    waits = 0;
    int64_t idle = 0;  // slots in which no stage moved
    for (int64_t slot = 0; left_ > 0; ++slot) {
      bool moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) {
        const int kind = Choose(stage, slot);
        if (kind >= 0) {
          Do(stage, kind, slot);
          moved = true;
        } else if (!result_[stage].empty() && result_[stage].size() < actions_of_stage_) {
          waits = std::max(waits, ++waits_[stage]);
        }
      }
      idle = moved ? 0 : idle + 1;
      if (idle > 1) {
        return std::nullopt;
      }
    }
    return std::move(result_);
  }

 private:
  size_t KeyOf(int virtual_stage, int microbatch) const {
    return static_cast<size_t>(virtual_stage) * shape_.microbatches + microbatch;
  }

  size_t KindOf(const Action& action) const {
    const size_t first = action.operation == Operation::kBackwardInput ? 0
                         : action.operation == Operation::kForward     ? 1
                                                                       : 2;
    return preference_.by_chunk ? first * shape_.chunks + (shape_.chunks - 1 - action.chunk)
                                : first;
  }

  // A forward that others overtake leaves room for one of each later chunk, without which nothing
  // is ever given back.
  bool Ready(int stage, const Action& action, int64_t slot) const {
    const int here = shape_.VirtualStageOf(stage, action.chunk);
    if (action.operation == Operation::kForward) {
      const int room = preference_.by_chunk ? shape_.chunks - 1 - action.chunk : 0;
      return kinds_[stage].held + room < kinds_[stage].most &&
             (here == 0 || forwards_[KeyOf(here - 1, action.microbatch)] <= slot);
    }
    if (action.operation == Operation::kBackwardInput) {
      return forwards_[KeyOf(here, action.microbatch)] <= slot &&
             (here + 1 == shape_.VirtualStages() ||
              backwards_[KeyOf(here + 1, action.microbatch)] <= slot);
    }
    return backwards_[KeyOf(here, action.microbatch)] <= slot;
  }

  // The kind of the action to run now, -1 where none is ready.
  int Choose(int stage, int64_t slot) const {
    const Kinds& kinds = kinds_[stage];
    int chosen = -1;
    for (int kind = 0; kind < static_cast<int>(kinds.of.size()); ++kind) {
      if (kinds.next[kind] == kinds.of[kind].size() ||
          !Ready(stage, kinds.of[kind][kinds.next[kind]].action, slot)) {
        continue;
      }
      if (chosen < 0 ||
          (!preference_.backward_first &&
           kinds.of[kind][kinds.next[kind]].place < kinds.of[chosen][kinds.next[chosen]].place)) {
        chosen = kind;
      }
    }
    return chosen;
  }

  void Do(int stage, int kind, int64_t slot) {
    Kinds& kinds = kinds_[stage];
    const Action& action = kinds.of[kind][kinds.next[kind]++].action;
    const size_t key = KeyOf(shape_.VirtualStageOf(stage, action.chunk), action.microbatch);
    if (action.operation == Operation::kForward) {
      forwards_[key] = slot + 1;
      ++kinds.held;
    } else if (action.operation == Operation::kBackwardInput) {
      backwards_[key] = slot + 1;
    } else {
      --kinds.held;
    }
    result_[stage].push_back(action);
    --left_;
  }

  ScheduleShape shape_;
  Preference preference_;
  std::vector<Kinds> kinds_;
  std::vector<StageActions> result_;
  std::vector<int64_t> forwards_;  // the slot from which on the result is there
  std::vector<int64_t> backwards_;
  std::vector<int64_t> waits_;
  size_t actions_of_stage_ = 0;
  int64_t left_ = 0;
};

// The same of the lists as they are.
int64_t WaitsOf(const ScheduleShape& shape, const std::vector<StageActions>& lists) {
  std::vector<int64_t> forwards(static_cast<size_t>(shape.VirtualStages()) * shape.microbatches,
                                kNotYet);
  std::vector<int64_t> backwards = forwards;
  const auto key = [&](int virtual_stage, const Action& action) {
    return static_cast<size_t>(virtual_stage) * shape.microbatches + action.microbatch;
  };
  std::vector<size_t> next(shape.stages);
  std::vector<int64_t> clock(shape.stages, 0);
  std::vector<int64_t> waited(shape.stages, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < shape.stages; ++stage) {
      for (; next[stage] < lists[stage].size(); ++next[stage], moved = true) {
        const Action& action = lists[stage][next[stage]];
        const int here = shape.VirtualStageOf(stage, action.chunk);
        int64_t input = 0;
        if (action.operation == Operation::kForward && here > 0) {
          input = forwards[key(here - 1, action)];
        } else if (action.operation == Operation::kBackwardInput &&
                   here + 1 < shape.VirtualStages()) {
          input = backwards[key(here + 1, action)];
        }
        if (input == kNotYet) {
          break;
        }
        waited[stage] += next[stage] == 0 ? 0 : std::max<int64_t>(0, input - clock[stage]);
        clock[stage] = std::max(clock[stage], input) + 1;
        if (action.operation == Operation::kForward) {
          forwards[key(here, action)] = clock[stage];
        } else if (action.operation == Operation::kBackwardInput) {
          backwards[key(here, action)] = clock[stage];
        }
      }
    }
  }
  return std::ranges::max(waited);
}

}  // namespace

std::vector<StageActions> FillGaps(const ScheduleShape& shape, std::vector<StageActions> lists) {
  int64_t least = WaitsOf(shape, lists);
  std::vector<StageActions> best = lists;
  for (const Preference preference :
       {Preference{}, Preference{.backward_first = true}, Preference{.by_chunk = true},
        Preference{.backward_first = true, .by_chunk = true}}) {
    int64_t waits = 0;
    auto filled = Slotted(shape, lists, preference).Run(waits);
    if (filled.has_value() && waits < least) {
      least = waits;
      best = *std::move(filled);
    }
  }
  return best;
}

}  // namespace shoal::plan
