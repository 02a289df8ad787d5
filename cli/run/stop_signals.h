// What asks `shoal train` to stop, as a count that the main loop looks at: Ctrl-C, SIGTERM, a
// terminal that hung up, an output that nobody reads any more. One object at a time, made after
// everything that may simply be killed is over; the handlers before it come back when it goes.
//
// The first asks for a checkpoint, the second to stop at once. Wrappers pass a signal on to a
// process and then to its group, so only a Ctrl-C two seconds after the first counts as the second.
#pragma once

#include <signal.h>

#include <array>

namespace shoal::cli {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Whether a signal came to the object that there is, or to the last one.
  static bool Came();

  // 0, 1 or 2.
  int count() const;
  // "Ctrl-C", "SIGTERM", "hang-up" or "closed output", of the last one that counted.
  const char* reason() const;

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  std::array<struct sigaction, kSignals.size()> before_ = {};
};

}  // namespace shoal::cli
