// Decides who runs what next in a step where workers draw their microbatches (packs) one after the
// other: a state machine that is told the time.
//
// It starts from a plan:
// - A worker draws its own packs, costliest first. Its reports of when it will be free show how
//   fast it is; one that has not drawn when it should have counts as slow for as long as that
//   lasts.
// - A worker without packs of its own takes over a pack from the worker predicted to finish last of
//   those that it can relieve, but only if both then finish sooner than the other would by itself.
// - The worker predicted to finish last of all gives packs to the one predicted to finish first, as
//   long as that shortens the longer of the two.
//
// So a step never takes longer than planned if predictions come true, and adapts if they do not.
// What a lost worker had goes to the others, each pack to where it ends soonest; who has left by
// then resumes.
//
// Owned by the coordinator or the simulator, which serialise the calls. Times are seconds from any
// origin and do not run backwards. Only wrong numbers fail.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/step/step_plan.h"

namespace shoal::plan {

class DrawQueue {
 public:
  // `speeds` by worker, relative to each other (empty: all 1). A worker of speed 1 completes
  // `cost_per_second`; 0: unknown, and learned as workers draw. Ignores empty microbatches.
  DrawQueue(StepPlan plan, std::vector<double> speeds, double cost_per_second);

  // Gives each worker its first pack, if it has one. Call once, before Draw.
  void Start(double now);

  // Returns what a worker runs after everything it has drawn so far; null: nothing is left for it
  // now. The pack lives as long as this. InvalidArgument for a number out of turn.
  // - `number` is 1, 2, ... for each worker. A repeated number gets the same pack again; after a
  //   null the same number may be asked again, say when the worker is idle.
  // - `ahead_seconds` is how long the worker expects to be busy still.
  absl::StatusOr<const Microbatch*> Draw(int worker, int64_t number, double now,
                                         double ahead_seconds);

  // The worker leaves, having run everything it was given: nobody may give it packs any more. It
  // must have none left.
  void Retire(int worker);
  // The worker is lost. What waits for it, and what it was given of `undone` (numbers of packs),
  // waits for the others from now on, as long as there are any.
  void Lose(int worker, std::span<const int64_t> undone, double now);
  // A worker that has reported takes part again, with what waits for it: gives it the first of
  // that, and counts its draws from 1.
  void Resume(int worker, double now);

  // Returns what a worker has been given since it started or resumed, including the first pack, in
  // order.
  std::vector<const Microbatch*> Given(int worker) const;
  // Returns how many packs wait for this worker to draw them. It gets all of them before a null.
  int64_t Left(int worker) const;

 private:
  struct Worker {
    double speed = 1;
    std::vector<size_t> waiting;  // pack ids by rising cost: drawn from the back
    double waiting_cost = 0;
    std::vector<size_t> given;
    size_t resumed_at = 0;  // in `given`
    bool has_first = false;
    bool lost = false;
    bool idle = false;      // was told that nothing is left, or has left: nobody may give it packs
    double last_start = 0;  // when it reaches the last pack given, or is free
    double last_cost = 0;   // of that pack; 0: the worker has finished it
    double seen_cost = 0;   // what it completed in seen_seconds; recent packs count more
    double seen_seconds = 0;
  };

  double CostPerSecond() const;
  double Pace(const Worker& worker) const;
  // Returns when it will have run everything given to it and everything that waits for it.
  double Finish(const Worker& worker, double now) const;
  void Observe(Worker& worker, double free_at);
  void TakeOver(Worker& worker, double now);
  void GiveAway(Worker& worker, double now);
  bool GiveOne(Worker& worker, double now);
  void Give(Worker& worker);
  void Wait(size_t pack, Worker& worker);
  void Move(Worker& from, Worker& to, size_t position);
  double Cost(size_t pack) const { return packs_[pack].cost; }

  std::vector<Microbatch> packs_;
  std::vector<Worker> workers_;
  double known_cost_per_second_;
  double start_ = 0;
  double planned_ = 0;  // cost / speed of the worker with most to do
  // Over all workers: the cost completed, and the seconds that a worker of speed 1 takes for it.
  double all_cost_ = 0;
  double all_seconds_ = 0;
};

}  // namespace shoal::plan
