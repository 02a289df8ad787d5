// shoal: the command line. Everything is in app.h.
#include <unistd.h>

#include <ostream>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/run/stop_signals.h"
#include "cli/terminal/output.h"
#include "core/base/logging.h"
#include "core/base/threads/lock_order.h"

int main(int argc, char** argv) {
  shoal::StopCheckingLockOrder();
  shoal::InitLogging({.role = "shoal", .level = "warn"});
  shoal::cli::Output output(STDOUT_FILENO, shoal::cli::StopSignals::Came);
  shoal::cli::Output errors(STDERR_FILENO, shoal::cli::StopSignals::Came);
  std::ostream out(&output);
  std::ostream err(&errors);
  err << std::unitbuf;
  shoal::cli::Streams streams{out, err, shoal::cli::DetectTerminal(STDOUT_FILENO),
                              shoal::cli::DetectTerminal(STDERR_FILENO)};
  const int code = shoal::cli::RunShoal(std::vector<std::string>(argv + 1, argv + argc), streams);
  out << std::flush;
  if (output.dropped_lines() > 0) {
    err << output.dropped_lines() << " lines of output were not printed: nobody read them\n";
  }
  return code;
}
