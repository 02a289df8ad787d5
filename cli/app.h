// The `shoal` command as a function: parses the command line, runs the command it names, prints the
// one line of an error and returns the exit code.
#pragma once

#include <string>
#include <vector>

#include "cli/run/command.h"

namespace shoal::cli {

// `arguments` without the program's name.
int RunShoal(const std::vector<std::string>& arguments, Streams& streams);

}  // namespace shoal::cli
