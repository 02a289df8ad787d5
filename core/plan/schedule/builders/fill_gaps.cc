#include "core/plan/schedule/builders/fill_gaps.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <string_view>
#include <utility>

#include "core/base/check.h"

namespace shoal::plan {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::max();
constexpr int kKinds = 6;  // F, B and W of two chunks

// An order of kinds: "B1 F1 ..." as the index of a kind's operation and chunk.
using Order = std::array<int, kKinds>;

constexpr int KindOf(char operation, int chunk) {
  return (operation == 'F' ? 0 : operation == 'B' ? 2 : 4) + chunk;
}
constexpr Order Kinds(std::string_view text) {
  Order order{};
  for (size_t i = 0; i < kKinds; ++i) {
    order[i] = KindOf(text[2 * i], text[2 * i + 1] - '0');
  }
  return order;
}
int KindOf(const Action& action) {
  return KindOf(action.operation == Operation::kForward         ? 'F'
                : action.operation == Operation::kBackwardInput ? 'B'
                                                                : 'W',
                action.chunk);
}

// Which of several ready actions goes first.
struct Rule {
  std::optional<Order> first;   // by kind; none: as in the list
  bool chunks_in_turn = false;  // F, B and W each stay in the order of the list
  // by kind, for a stage's last forwards and the actions that go with them
  std::optional<Order> last;
};

struct Place {
  size_t place = 0;  // in the stage's list
  Action action;
};

struct Stage {
  std::array<std::vector<Place>, kKinds> kinds;
  std::array<size_t, kKinds> next{};
  double free = 0;
  double begin = kNotYet;
  double busy = 0;
  int held = 0;
  int most = 0;
  StageActions result;
};

struct Filled {
  std::vector<StageActions> lists;
  double end = 0;    // of all stages
  double waits = 0;  // of the stage that waits longest between its first and last action
};

class Filling {
 public:
  Filling(const ScheduleShape& shape, const std::vector<StageActions>& lists,
          const ScheduleCosts& costs, const Rule& rule)
      : shape_(shape), costs_(costs), rule_(rule), stages_(lists.size()) {
    forwards_.assign(static_cast<size_t>(shape.VirtualStages()) * shape.microbatches, kNotYet);
    backwards_ = forwards_;
    for (size_t stage = 0; stage < lists.size(); ++stage) {
      stages_[stage].most = PeakActivations(lists[stage]);
      for (size_t i = 0; i < lists[stage].size(); ++i) {
        stages_[stage].kinds[KindOf(lists[stage][i])].push_back({i, lists[stage][i]});
        ++left_;
      }
      events_.emplace(0.0, static_cast<int>(stage));
    }
  }

  // Returns nothing if the stages wait forever.
  std::optional<Filled> Run() {
    while (!events_.empty()) {
      const auto [time, stage] = events_.top();
      events_.pop();
      if (stages_[stage].free > time) {
        continue;
      }
      if (const int kind = Choose(stage, time); kind >= 0) {
        Do(stage, kind, time);
      }
    }
    if (left_ > 0) {
      return std::nullopt;
    }
    Filled filled;
    for (Stage& stage : stages_) {
      filled.end = std::max(filled.end, stage.free);
      filled.waits = std::max(filled.waits, stage.free - stage.begin - stage.busy);
      filled.lists.push_back(std::move(stage.result));
    }
    return filled;
  }

 private:
  size_t KeyOf(int virtual_stage, int microbatch) const {
    return static_cast<size_t>(virtual_stage) * shape_.microbatches + microbatch;
  }

  // A forward that others may overtake leaves room for one of each later chunk, without which
  // nothing would ever be freed.
  bool Ready(int number, const Action& action, double time) const {
    const Stage& stage = stages_[number];
    const int here = shape_.VirtualStageOf(number, action.chunk);
    if (action.operation == Operation::kForward) {
      const int room = rule_.chunks_in_turn ? 0 : shape_.chunks - 1 - action.chunk;
      return stage.held + room < stage.most &&
             (here == 0 || forwards_[KeyOf(here - 1, action.microbatch)] <= time);
    }
    if (action.operation == Operation::kBackwardInput) {
      return forwards_[KeyOf(here, action.microbatch)] <= time &&
             (here + 1 == shape_.VirtualStages() ||
              backwards_[KeyOf(here + 1, action.microbatch)] <= time);
    }
    return backwards_[KeyOf(here, action.microbatch)] <= time;
  }

  const Place* Head(const Stage& stage, int kind) const {
    const std::vector<Place>& places = stage.kinds[kind];
    return stage.next[kind] < places.size() ? &places[stage.next[kind]] : nullptr;
  }

  // Whether the other chunk's action of this operation comes first.
  bool InTurn(const Stage& stage, int kind) const {
    const Place* other = Head(stage, kind ^ 1);
    return other == nullptr || Head(stage, kind)->place < other->place;
  }

  // Returns the kind of the action to run now, -1 if none is ready.
  int Choose(int number, double time) const {
    const Stage& stage = stages_[number];
    const bool last = rule_.last.has_value() && static_cast<int>(stage.next[KindOf('F', 0)]) >=
                                                    shape_.microbatches - shape_.stages / 2;
    const std::optional<Order>& order = last ? rule_.last : rule_.first;
    int chosen = -1;
    for (int i = 0; i < kKinds; ++i) {
      const int kind = order.has_value() ? (*order)[i] : i;
      const Place* head = Head(stage, kind);
      if (head == nullptr || (rule_.chunks_in_turn && !last && !InTurn(stage, kind)) ||
          !Ready(number, head->action, time)) {
        continue;
      }
      if (order.has_value()) {
        return kind;
      }
      if (chosen < 0 || head->place < Head(stage, chosen)->place) {
        chosen = kind;
      }
    }
    return chosen;
  }

  void Do(int number, int kind, double time) {
    Stage& stage = stages_[number];
    const Action& action = stage.kinds[kind][stage.next[kind]++].action;
    const int here = shape_.VirtualStageOf(number, action.chunk);
    const size_t key = KeyOf(here, action.microbatch);
    const ChunkCost& cost = costs_.Of(number, action.chunk, action.microbatch);
    const double seconds = SecondsOf(cost, action.operation);
    const double end = time + seconds;
    if (action.operation == Operation::kForward) {
      ++stage.held;
      forwards_[key] = end + (SendsActivation(shape_, here) ? cost.send_activation : 0);
      Wake(here, forwards_[key]);
      Wake(here + 1, forwards_[key]);
    } else if (action.operation == Operation::kBackwardInput) {
      backwards_[key] = end + (SendsGradient(shape_, here) ? cost.send_gradient : 0);
      Wake(here, backwards_[key]);
      Wake(here - 1, backwards_[key]);
    } else {
      --stage.held;
    }
    stage.begin = std::min(stage.begin, time);
    stage.busy += seconds;
    stage.free = end;
    stage.result.push_back(action);
    events_.emplace(end, number);
    --left_;
  }

  void Wake(int virtual_stage, double time) {
    if (virtual_stage >= 0 && virtual_stage < shape_.VirtualStages()) {
      const int stage = shape_.At(virtual_stage).stage;
      events_.emplace(std::max(time, stages_[stage].free), stage);
    }
  }

  const ScheduleShape shape_;
  const ScheduleCosts& costs_;
  const Rule& rule_;
  std::vector<Stage> stages_;
  std::vector<double> forwards_;  // when the result arrives where it is used
  std::vector<double> backwards_;
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>
      events_;
  int64_t left_ = 0;
};

// Each is the best of all for some shapes and costs.
const std::array<Rule, 11>& Rules() {
  static const auto& rules =
      *new std::array<Rule, 11>{{{},
                                 {.last = Kinds("F0F1B0B1W0W1")},
                                 {.last = Kinds("F1F0B1B0W0W1")},
                                 {.chunks_in_turn = true},
                                 {.chunks_in_turn = true, .last = Kinds("F1F0B1B0W0W1")},
                                 {.first = Kinds("F1F0B1B0W1W0"), .chunks_in_turn = true},
                                 {.first = Kinds("B1B0F1F0W1W0"), .chunks_in_turn = true},
                                 {.first = Kinds("B1B0F1F0W1W0")},
                                 {.first = Kinds("B1B0F1F0W1W0"), .last = Kinds("F0F1B0B1W0W1")},
                                 {.first = Kinds("B1B0W0F1F0W1"), .last = Kinds("F1F0B1B0W0W1")},
                                 {.first = Kinds("B1F1W0B0F0W1"), .last = Kinds("F0F1B0B1W0W1")}}};
  return rules;
}

}  // namespace

std::vector<StageActions> FillGaps(const ScheduleShape& shape, std::vector<StageActions> lists,
                                   const ScheduleCosts& costs) {
  SHOAL_CHECK(shape.chunks == 2);
  std::optional<Filled> best;
  for (const Rule& rule : Rules()) {
    std::optional<Filled> filled = Filling(shape, lists, costs, rule).Run();
    if (filled.has_value() && (!best.has_value() || std::pair(filled->end, filled->waits) <
                                                        std::pair(best->end, best->waits))) {
      best = std::move(filled);
    }
  }
  return best.has_value() ? std::move(best->lists) : std::move(lists);
}

}  // namespace shoal::plan
