#include "cli/run/stop_signals.h"

namespace shoal::cli {
namespace {

// Signal handlers can reach nothing but globals.
volatile sig_atomic_t stop_count = 0;
volatile sig_atomic_t last_signal = 0;

void CountSignal(int number) {
  stop_count = stop_count + 1;
  last_signal = number;
}

}  // namespace

StopSignals::StopSignals() {
  stop_count = 0;
  struct sigaction action {};
  action.sa_handler = CountSignal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
  sigaction(SIGHUP, &action, &hang_up_before_);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
  sigaction(SIGHUP, &hang_up_before_, nullptr);
}

int StopSignals::count() const { return stop_count; }

const char* StopSignals::reason() const {
  switch (last_signal) {
    case SIGINT:
      return "Ctrl-C";
    case SIGHUP:
      return "hang-up";
    default:
      return "SIGTERM";
  }
}

}  // namespace shoal::cli
