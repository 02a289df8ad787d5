// Decides what becomes of a job that loses a process. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "server/coordinator/members/membership.h"

namespace shoal::server {

struct JobSnapshot {
  std::string place;        // of a worker: WorkerGroups::Place
  bool takes_part = false;  // the lost member was given work or weights of this job
  bool ending = false;      // no more steps: only servers are needed
  bool asked = false;       // it asked to leave, and stays until it is let go
  bool restores = true;     // goes on after the loss of a server
  bool replaced = false;    // other servers have what it had
  int64_t step = 0;         // the one in progress
};

struct LossDecision {
  enum class What {
    kGoOn,
    kGoOnWithout,  // others do a worker's packs, or have what a server had
    kSaveAndFail,  // servers hold every weight of the last commit
    kFail,
  };
  What what = What::kGoOn;
  bool restarts = true;  // where the coordinator stays; else the job ends for good
  std::string message;   // one line, for the event and the log
};

// `why` is how it was noticed: "its lease of 10 s is over".
LossDecision DecideOnLoss(const Member& lost, const std::string& why, const JobSnapshot& job);

}  // namespace shoal::server
