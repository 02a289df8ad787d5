// What JobRun keeps of things under way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/coordinator/job/takeover.h"

namespace shoal::server {

// A run of an earlier life, until servers have said where it is.
struct Takeover {
  EarlierRun run;
  std::vector<std::optional<ServerAnswer>> answers;  // by server
  std::map<size_t, absl::Time> ask_again;            // servers that could not be reached; when
  std::optional<int64_t> recorded;  // the last event in the run's record, once that is read
};

// Why a job ends.
struct Failure {
  std::string message;
  bool non_finite = false;
  bool by_loss = false;
  bool asked = false;  // the one that is lost
};

// Whether a later life has taken over.
struct Question {
  size_t unanswered = 0;
  absl::Time until;
  std::function<void()> then;
};

// Of a server that is to go.
struct Departure {
  std::string why;
  bool drained = false;  // by wish: where it cannot go, it stays
};

}  // namespace shoal::server
