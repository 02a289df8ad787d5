#include "core/plan/step/draw_queue.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::plan {
namespace {

// Gains below this fraction of a step's time are rounding.
constexpr double kRoundingOfTimes = 1e-9;
// Weight of earlier observations after one more pack was seen.
constexpr double kMemory = 0.5;
// What is known about a worker before the step weighs as much as this many packs.
constexpr double kKnownPacks = 0.5;

}  // namespace

DrawQueue::DrawQueue(StepPlan plan, std::vector<double> speeds, double cost_per_second)
    : workers_(plan.workers.size()), known_cost_per_second_(cost_per_second) {
  SHOAL_CHECK(speeds.empty() || speeds.size() == workers_.size());
  double total = 0;
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    Worker& self = workers_[worker];
    self.speed = speeds.empty() ? 1.0 : speeds[worker];
    SHOAL_CHECK(self.speed > 0);
    for (Microbatch& microbatch : plan.workers[worker]) {
      if (!microbatch.empty()) {
        self.waiting.push_back(packs_.size());
        self.waiting_cost += microbatch.cost;
        packs_.push_back(std::move(microbatch));
      }
    }
    // Back to front, so that of equal packs the one planned first is drawn first.
    std::reverse(self.waiting.begin(), self.waiting.end());
    std::stable_sort(self.waiting.begin(), self.waiting.end(),
                     [this](size_t a, size_t b) { return Cost(a) < Cost(b); });
    planned_ = std::max(planned_, self.waiting_cost / self.speed);
    total += self.waiting_cost;
  }
  if (known_cost_per_second_ > 0 && !packs_.empty()) {
    const double typical = total / static_cast<double>(packs_.size());
    for (Worker& self : workers_) {
      self.seen_cost = kKnownPacks * typical;
      self.seen_seconds = self.seen_cost / (self.speed * known_cost_per_second_);
    }
  }
}

void DrawQueue::Start(double now) {
  start_ = now;
  for (Worker& self : workers_) {
    self.last_start = now;
    self.has_first = !self.waiting.empty();
    if (self.has_first) {
      Give(self);
    }
  }
}

double DrawQueue::CostPerSecond() const {
  if (known_cost_per_second_ > 0) {
    return known_cost_per_second_;
  }
  return all_seconds_ > 0 ? all_cost_ / all_seconds_ : 1.0;
}

double DrawQueue::Pace(const Worker& worker) const {
  return worker.seen_seconds > 0 ? worker.seen_cost / worker.seen_seconds
                                 : worker.speed * CostPerSecond();
}

double DrawQueue::Finish(const Worker& worker, double now) const {
  double pace = Pace(worker);
  double free_at = worker.last_start + worker.last_cost / pace;
  if (now > free_at) {
    free_at = now;
    if (worker.last_cost > 0) {
      // It should have drawn by now, so it cannot have been faster than this.
      pace = worker.last_cost / (now - worker.last_start);
    }
  }
  return free_at + worker.waiting_cost / pace;
}

void DrawQueue::Observe(Worker& worker, double free_at) {
  const double seconds = free_at - worker.last_start;
  if (worker.last_cost > 0 && seconds > 0) {
    worker.seen_cost = kMemory * worker.seen_cost + worker.last_cost;
    worker.seen_seconds = kMemory * worker.seen_seconds + seconds;
    all_cost_ += worker.last_cost;
    all_seconds_ += seconds * worker.speed;
  }
  worker.last_start = std::max(worker.last_start, free_at);
  worker.last_cost = 0;
}

absl::StatusOr<const Microbatch*> DrawQueue::Draw(int worker, int64_t number, double now,
                                                  double ahead_seconds) {
  SHOAL_CHECK(worker >= 0 && static_cast<size_t>(worker) < workers_.size());
  Worker& self = workers_[static_cast<size_t>(worker)];
  const int64_t first = self.has_first ? 1 : 0;
  const int64_t before = static_cast<int64_t>(self.resumed_at) + first;
  const int64_t drawn = std::ssize(self.given) - before;
  if (number < 1 || number > drawn + 1) {
    return InvalidArgument("worker {} makes draw {}, having made {}", worker, number, drawn);
  }
  if (number <= drawn) {
    return &packs_[self.given[static_cast<size_t>(number - 1 + before)]];
  }
  Observe(self, now + std::max(0.0, ahead_seconds));
  if (self.waiting.empty()) {
    TakeOver(self, now);
  } else {
    GiveAway(self, now);
  }
  self.idle = self.waiting.empty();
  if (self.idle) {
    return nullptr;
  }
  Give(self);
  return &packs_[self.given.back()];
}

void DrawQueue::TakeOver(Worker& worker, double now) {
  std::vector<std::pair<double, Worker*>> others;
  for (Worker& other : workers_) {
    if (!other.waiting.empty()) {
      others.emplace_back(Finish(other, now), &other);
    }
  }
  const auto sooner = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::make_heap(others.begin(), others.end(), sooner);
  const double pace = Pace(worker);
  for (; !others.empty(); others.pop_back()) {
    std::pop_heap(others.begin(), others.end(), sooner);
    const auto& [finish, other] = others.back();
    double best = finish - kRoundingOfTimes * (finish - start_);
    size_t chosen = other->waiting.size();
    for (size_t i = other->waiting.size(); i-- > 0;) {
      const double cost = Cost(other->waiting[i]);
      const double longest =
          std::max(worker.last_start + cost / pace, finish - cost / Pace(*other));
      if (longest < best) {
        best = longest;
        chosen = i;
      }
    }
    if (chosen < other->waiting.size()) {
      Move(*other, worker, chosen);
      return;
    }
  }
}

void DrawQueue::GiveAway(Worker& worker, double now) {
  // As long as nobody is later than planned there is nothing to do.
  const double planned = planned_ / CostPerSecond();
  while (Finish(worker, now) > start_ + planned * (1 + kRoundingOfTimes) && GiveOne(worker, now)) {
  }
}

// Gives one pack to the worker predicted to finish first; false if `worker` is not the last or
// there is nothing to gain.
bool DrawQueue::GiveOne(Worker& worker, double now) {
  const double finish = Finish(worker, now);
  double earliest = std::numeric_limits<double>::infinity();
  Worker* receiver = nullptr;
  for (Worker& other : workers_) {
    if (&other == &worker || other.idle) {
      continue;
    }
    const double others_finish = Finish(other, now);
    if (others_finish > finish) {
      return false;
    }
    if (others_finish < earliest) {
      earliest = others_finish;
      receiver = &other;
    }
  }
  if (receiver == nullptr) {
    return false;
  }
  double best = finish - kRoundingOfTimes * (finish - start_);
  size_t chosen = worker.waiting.size();
  for (size_t i = worker.waiting.size(); i-- > 0;) {
    const double cost = Cost(worker.waiting[i]);
    const double longest =
        std::max(finish - cost / Pace(worker), earliest + cost / Pace(*receiver));
    if (longest < best) {
      best = longest;
      chosen = i;
    }
  }
  if (chosen == worker.waiting.size()) {
    return false;
  }
  Move(worker, *receiver, chosen);
  return true;
}

void DrawQueue::Give(Worker& worker) {
  const size_t pack = worker.waiting.back();
  worker.waiting.pop_back();
  worker.waiting_cost = worker.waiting.empty() ? 0.0 : worker.waiting_cost - Cost(pack);
  worker.given.push_back(pack);
  worker.last_cost = Cost(pack);
}

void DrawQueue::Move(Worker& from, Worker& to, size_t position) {
  const size_t pack = from.waiting[position];
  from.waiting.erase(from.waiting.begin() + static_cast<ptrdiff_t>(position));
  from.waiting_cost = from.waiting.empty() ? 0.0 : from.waiting_cost - Cost(pack);
  Wait(pack, to);
}

void DrawQueue::Wait(size_t pack, Worker& worker) {
  const auto place = std::upper_bound(worker.waiting.begin(), worker.waiting.end(), pack,
                                      [this](size_t a, size_t b) { return Cost(a) < Cost(b); });
  worker.waiting.insert(place, pack);
  worker.waiting_cost += Cost(pack);
}

void DrawQueue::Lose(int worker, std::span<const int64_t> undone, double now) {
  Worker& self = workers_[static_cast<size_t>(worker)];
  self.lost = self.idle = true;
  for (const size_t pack : self.given) {
    if (std::ranges::find(undone, packs_[pack].number) != undone.end()) {
      Wait(pack, self);
    }
  }
  const bool last = std::ranges::all_of(workers_, &Worker::lost);
  while (!last && !self.waiting.empty()) {
    const double cost = Cost(self.waiting.back());
    Worker* receiver = nullptr;
    double earliest = std::numeric_limits<double>::infinity();
    for (Worker& other : workers_) {
      const double finish = other.lost ? earliest : Finish(other, now) + cost / Pace(other);
      if (finish < earliest) {
        earliest = finish;
        receiver = &other;
      }
    }
    Move(self, *receiver, self.waiting.size() - 1);
  }
}

void DrawQueue::Resume(int worker, double now) {
  Worker& self = workers_[static_cast<size_t>(worker)];
  SHOAL_CHECK(!self.lost);
  self.idle = false;
  self.last_start = now;
  self.last_cost = 0;
  self.resumed_at = self.given.size();
  self.has_first = !self.waiting.empty();
  if (self.has_first) {
    Give(self);
  }
}

void DrawQueue::Retire(int worker) {
  Worker& self = workers_[static_cast<size_t>(worker)];
  SHOAL_CHECK(self.waiting.empty());
  self.idle = true;
}

std::vector<const Microbatch*> DrawQueue::Given(int worker) const {
  std::vector<const Microbatch*> result;
  const Worker& self = workers_[static_cast<size_t>(worker)];
  for (size_t i = self.resumed_at; i < self.given.size(); ++i) {
    result.push_back(&packs_[self.given[i]]);
  }
  return result;
}

int64_t DrawQueue::Left(int worker) const {
  return static_cast<int64_t>(workers_[static_cast<size_t>(worker)].waiting.size());
}

}  // namespace shoal::plan
