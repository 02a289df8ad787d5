// shoal: the command line. Everything is in app.h.
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "cli/app.h"
#include "core/base/logging.h"
#include "core/base/threads/lock_order.h"

int main(int argc, char** argv) {
  shoal::StopCheckingLockOrder();
  shoal::InitLogging({.process = "shoal", .level = "warn"});
  shoal::cli::Streams streams{std::cout, std::cerr, shoal::cli::DetectTerminal(STDOUT_FILENO),
                              shoal::cli::DetectTerminal(STDERR_FILENO)};
  return shoal::cli::RunShoal(std::vector<std::string>(argv + 1, argv + argc), streams);
}
