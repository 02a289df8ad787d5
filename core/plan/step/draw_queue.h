// Who runs what next in a step where workers draw their microbatches (packs) one after the other: a
// state machine that is told the time.
//
// It starts from a plan. A worker draws its own packs, costliest first. What it says about when it
// will be free shows how fast it is, and one that has not drawn when it should have is seen to be
// slow as long as that lasts. A worker that has none of its own left takes over a pack, from the
// one that is predicted to finish last of those that it can relieve, and only if that lets both be
// done sooner than the other alone. A worker that is predicted to finish last of all gives packs
// to the one predicted to finish first, as long as that makes the longest of both shorter. So where
// predictions come true a step never takes longer than planned, and where they do not it adapts.
//
// Owned by the coordinator or the simulator, which serialise the calls. Times are seconds from any
// origin and do not run backwards. Nothing but wrong numbers fails.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/step/step_plan.h"

namespace shoal::plan {

class DrawQueue {
 public:
  // `speeds` by worker, relative to each other (empty: all 1). A worker of speed 1 gets through
  // `cost_per_second`; 0: nobody knows yet, it shows as workers draw. Empty microbatches are left
  // out.
  DrawQueue(StepPlan plan, std::vector<double> speeds, double cost_per_second);

  // Workers begin, each with its first pack if it has one. To be called once, before Draw.
  void Start(double now);

  // What a worker runs after all it has drawn so far; null: nothing is left for it now. `number` is
  // 1, 2, ... for each worker; a repeated one gets the same pack again, and after a null the same
  // number may be asked again, say when the worker is idle. `ahead_seconds` is how long the worker
  // reckons to be busy yet. InvalidArgument for a number out of turn. The pack lives as long as
  // this.
  absl::StatusOr<const Microbatch*> Draw(int worker, int64_t number, double now,
                                         double ahead_seconds);

  // The worker goes, having run all it was given: nobody may give it packs any more. It must have
  // none left.
  void Retire(int worker);

  // What a worker has been given, the first pack included, in order.
  std::vector<const Microbatch*> Given(int worker) const;
  // How many packs wait for this worker to draw them. It is told of all before it gets a null.
  int64_t Left(int worker) const;

 private:
  struct Worker {
    double speed = 1;
    std::vector<size_t> waiting;  // pack ids by rising cost: drawn from the back
    double waiting_cost = 0;
    std::vector<size_t> given;
    bool has_first = false;
    bool idle = false;      // was told that nothing is left, or is gone: nobody may give it packs
    double last_start = 0;  // when it comes to the last pack given, or is free
    double last_cost = 0;   // of that pack; 0: it has come to its end
    double seen_cost = 0;   // what it got through in seen_seconds, recent packs counting more
    double seen_seconds = 0;
  };

  double CostPerSecond() const;
  double Pace(const Worker& worker) const;
  // When it will have run all that was given to it and all that waits for it.
  double Finish(const Worker& worker, double now) const;
  void Observe(Worker& worker, double free_at);
  void TakeOver(Worker& worker, double now);
  void GiveAway(Worker& worker, double now);
  bool GiveOne(Worker& worker, double now);
  void Give(Worker& worker);
  void Move(Worker& from, Worker& to, size_t position);
  double Cost(size_t pack) const { return packs_[pack].cost; }

  std::vector<Microbatch> packs_;
  std::vector<Worker> workers_;
  double known_cost_per_second_;
  double start_ = 0;
  double planned_ = 0;  // cost / speed of the worker with most to do
  // Over all workers: what was got through, and the seconds that a worker of speed 1 takes for it.
  double all_cost_ = 0;
  double all_seconds_ = 0;
};

}  // namespace shoal::plan
