// Workers come and go while a job trains.
#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/step/hand_over.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {

int64_t JobRun::present() const { return std::ranges::count(absent_, false); }

bool JobRun::HasRoom() const {
  return !over() && !stop_requested_ && groups_.stages() == 1 &&
         present() + std::ssize(joiners_) < job_.workers;
}

void JobRun::TakeIn(const std::vector<Member>& workers) {
  for (const Member& worker : workers) {
    if (!HasRoom()) {
      return;
    }
    LogInfo("{} joins {}", NameOf(worker), job_.id);
    Record({{"event", "joined"}, {"step", step_}, {"member", NameOf(worker)}});
    environment_.metrics.workers_joined.Increment();
    // Where workers exchange among themselves it cannot join before the others know of it.
    joiners_.push_back({.member = worker, .ready = plan::MayExchange(job_.job)});
    Change();
  }
  if (phase_ == Phase::kShort) {
    OpenStep();
  }
}

void JobRun::OnReady(uint64_t incarnation) {
  for (Joiner& joiner : joiners_) {
    joiner.ready = joiner.ready || joiner.member.incarnation == incarnation;
  }
  if (phase_ == Phase::kShort) {
    OpenStep();
  }
}

std::string JobRun::Missing() const {
  const int64_t missing = std::max<int64_t>(1, job_.job.cluster.min_workers - present());
  return fmt::format("{} worker{}", missing, missing == 1 ? "" : "s");
}

bool JobRun::Regroup() {
  const auto ready = std::ranges::count_if(joiners_, &Joiner::ready);
  if (present() + ready < job_.job.cluster.min_workers) {
    return false;
  }
  if (ready == 0 && present() == std::ssize(workers_)) {
    return true;
  }
  std::vector<int> before;
  std::vector<Member> workers;
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    if (!absent_[worker]) {
      before.push_back(static_cast<int>(worker));
      workers.push_back(workers_[worker]);
    }
  }
  for (const Joiner& joiner : joiners_) {
    if (joiner.ready) {
      before.push_back(-1);
      workers.push_back(joiner.member);
    }
  }
  std::erase_if(joiners_, [](const Joiner& joiner) { return joiner.ready; });
  workers_ = std::move(workers);
  Renumber(before);
  Log(environment_.store.SaveRun(job_.id, DescribeRun(), /*begins=*/false));
  return true;
}

// Worker w is the one that was `before[w]`, or has joined (-1).
void JobRun::Renumber(const std::vector<int>& before) {
  const auto keep = [&before](auto& of_workers) {
    auto kept = of_workers;
    kept.assign(before.size(), {});
    for (size_t worker = 0; worker < before.size(); ++worker) {
      if (before[worker] >= 0 && before[worker] < std::ssize(of_workers)) {
        kept[worker] = of_workers[static_cast<size_t>(before[worker])];
      }
    }
    of_workers = std::move(kept);
  };
  keep(pushes_);
  keep(last_steps_);
  absent_.assign(workers_.size(), false);
  groups_ = WorkerGroups(workers_.size(), 1);
  names_.clear();
  for (const Member& worker : workers_) {
    names_.push_back(NameOf(worker));
  }
  measurements_->Renumber(before);
  if (plan::MayExchange(job_.job)) {
    ++formation_;
  }
  LogInfo("{} goes on with {} workers", job_.id, workers_.size());
  Change();
}

void JobRun::GoOnWithout(size_t worker) {
  if (absent_[worker]) {
    return;  // it left before
  }
  absent_[worker] = true;
  lost_workers_.push_back(workers_[worker].incarnation);
  environment_.metrics.workers_lost.Increment();
  if (phase_ == Phase::kRunning) {
    HandOver(worker);
  }  // else OnBegun or the next step sees that it is absent
}

// Whether the attempt cannot go on without a worker that is gone: others wait for it at layers, or
// servers may have a part of its sum of packs, or there is nobody else.
bool JobRun::MustDropWithout(size_t worker) const {
  const bool wanted = job_.job.train.synchronization == plan::Synchronization::kLayer ||
                      pushes_[worker] != proto::NextStepRequest::PUSHES_OF_PACKS;
  return (working_[worker] && wanted) || (present() == 0 && !ledger_->done());
}

void JobRun::HandOver(size_t worker) {
  if (MustDropWithout(worker)) {
    DropForMembers(fmt::format("{} is lost", names_[worker]));
    return;
  }
  working_[worker] = false;
  if (!reports_[worker].has_value()) {
    reported_at_[worker] = environment_.clock.Now();
  }
  const std::vector<int64_t> undone = ledger_->TakeBack(static_cast<int>(worker));
  redealt_[worker].clear();
  environment_.metrics.packs_taken_back.Increment(static_cast<double>(undone.size()));
  Record({{"event", "handed_over"},
          {"step", step_},
          {"member", NameOf(workers_[worker])},
          {"packs", undone.size()}});
  if (draws_.has_value()) {
    draws_->Lose(static_cast<int>(worker), undone,
                 absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_));
  } else {
    for (const auto& [pack, taker] : plan::HandOver(plan_, undone, absent_)) {
      ledger_->Give(pack, taker);
      redealt_[static_cast<size_t>(taker)].push_back(pack);
    }
  }
  for (size_t other = 0; other < workers_.size(); ++other) {
    StartRound(other);
  }
  EndOfRounds();
}

void JobRun::StartRound(size_t worker) {
  const int index = static_cast<int>(worker);
  const bool waits = draws_.has_value() ? draws_->Left(index) > 0 : !redealt_[worker].empty();
  if (absent_[worker] || working_[worker] || !waits) {
    return;
  }
  proto::StepWork work = MakeWork();
  work.set_round(work_[worker].round() + 1);
  if (draws_.has_value()) {
    work.set_draw(true);
    draws_->Resume(index, absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_));
    for (const plan::Microbatch* first : draws_->Given(index)) {
      ledger_->Give(first->number, index);
      FillMicrobatch(*first, *work.add_microbatches());
    }
  } else {
    for (const int64_t pack : redealt_[worker]) {
      FillMicrobatch(*plan_.Find(pack), *work.add_microbatches());
    }
    redealt_[worker].clear();
  }
  work_[worker] = std::move(work);
  working_[worker] = true;
  Change();
}

void JobRun::EndOfRounds() {
  if (phase_ == Phase::kRunning && std::ranges::find(working_, true) == working_.end()) {
    PrepareStep();
  }
}

}  // namespace shoal::server
