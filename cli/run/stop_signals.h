// Ctrl-C and SIGTERM as a count that the main loop looks at. One object at a time, made after
// everything that may simply be killed is over; the handlers before it come back when it goes.
#pragma once

#include <signal.h>

namespace shoal::cli {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // How many came since construction.
  int count() const;
  // "Ctrl-C", "SIGTERM" or "hang-up", of the last one.
  const char* reason() const;

 private:
  struct sigaction interrupt_before_ {};
  struct sigaction terminate_before_ {};
  struct sigaction hang_up_before_ {};
};

}  // namespace shoal::cli
