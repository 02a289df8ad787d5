// SimWorld's faults of a moment.
#include <algorithm>

#include "core/base/check.h"
#include "tests/simulation/process_ids.h"
#include "tests/simulation/sim_world.h"

namespace shoal::simulation {

SimProcess* SimWorld::ProcessNamed(const std::string& name) {
  if (name == "coordinator") {
    return &coordinator().process();
  }
  SimProcess* found = nullptr;
  ForEachMember([&](SimMember& member) {
    if (member.process().name() == name) {
      found = &member.process();
    }
  });
  return found;
}

void SimWorld::ApplyToLink(const Fault& fault) {
  const size_t arrow = fault.target.find('>');
  const SimProcess* from = ProcessNamed(fault.target.substr(0, arrow));
  const SimProcess* to = ProcessNamed(fault.target.substr(arrow + 1));
  if (from != nullptr && to != nullptr) {
    fault.kind == FaultKind::kCut ? context_.network.Cut(from->id(), to->id(), fault.amount)
                                  : context_.network.Clog(from->id(), to->id(), fault.amount);
  }
}

void SimWorld::Kill(const Fault& fault) {
  if (fault.target != "coordinator") {
    ForEachMember([&](SimMember& member) {
      if (member.process().name() == fault.target) {
        member.Kill(fault.amount);
      }
    });
    return;
  }
  SimCoordinator& killed = coordinator();
  killed.process().End();
  if (fault.kind == FaultKind::kPowerLoss) {
    SimStore& records = copy_ == nullptr ? *store : *copy_;
    context_.tail_lost = records.LosePower(context_.random) > 0 || context_.tail_lost;
    for (const auto& job : jobs_) {
      job->disk().shards.clear();
    }
  }
  if (fault.amount != kNever) {
    loop.At(loop.now() + fault.amount, [this, &killed] {
      if (&killed == &coordinator() && !killed.process().alive()) {
        killed.Start();
      }
    });
  }
}

void SimWorld::Succeed(Nanoseconds until_end) {
  if (successor_ != nullptr) {
    return;
  }
  store->on_commit = [this](const std::string& id, const server::CommitRecord& record) {
    invariants_.OnRecordedBeside(id, record);
  };
  context_.tail_lost = context_.has_successor = true;
  copy_ = store->Succeed();
  successor_ = std::make_unique<SimCoordinator>(context_, options_, *copy_, servers, Loader(*copy_),
                                                metrics, kSuccessor);
  Observe(*successor_, *copy_);
  coordinator_.successor = successor_.get();
  successor_->Start();
  if (until_end != kNever) {
    loop.At(loop.now() + until_end, [this] { coordinator_.process().End(); });
  }
}

void SimWorld::Apply(const Fault& fault) {
  context_.faults.Happened(fault);
  context_.Note("fault", static_cast<uint64_t>(fault.kind), [&] { return ToCode(fault); });
  SimProcess* process = ProcessNamed(fault.target);
  const bool of_process = fault.kind >= FaultKind::kFreeze && fault.kind <= FaultKind::kDiskSlow;
  if (of_process && process == nullptr) {
    return;  // Minimise left it out
  }
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kPowerLoss:
      Kill(fault);
      break;
    case FaultKind::kFreeze:
      process->Freeze(fault.amount);
      break;
    case FaultKind::kJump:
      process->clock().Jump(fault.amount);
      break;
    case FaultKind::kDrift:
      process->clock().SetDrift(fault.amount);
      break;
    case FaultKind::kDiskFull:
      process->disk_full_until = loop.now() + fault.amount;
      break;
    case FaultKind::kDiskSlow:
      process->disk_slow_until = loop.now() + fault.amount;
      break;
    case FaultKind::kCut:
    case FaultKind::kClog:
      ApplyToLink(fault);
      break;
    case FaultKind::kStop:
      command_.Stop(static_cast<size_t>(fault.target.back() - '0'));
      break;
    case FaultKind::kDrain:
      ForEachMember([&](SimMember& member) {
        if (member.process().name() == fault.target) {
          member.Drain(absl::Nanoseconds(fault.amount));
        }
      });
      break;
    case FaultKind::kScale:
      command_.Scale(static_cast<size_t>(fault.target.back() - '0'), fault.amount,
                     options_.move_rate);
      break;
    case FaultKind::kRemove:
      command_.Remove(fault.target.back() - '0');
      break;
    case FaultKind::kSucceed:
      Succeed(fault.amount);
      break;
    default:
      SHOAL_CHECK(false);
  }
}

}  // namespace shoal::simulation
