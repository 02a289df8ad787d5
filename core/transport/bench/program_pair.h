// Benchmarks that come as a server and a client of one program.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/transport/bench/run_program.h"

namespace shoal::transport {

// Runs `arguments` with a free port (-p) as server, and with `host` added as client; returns what
// the client printed.
absl::StatusOr<std::string> RunProgramPair(
    std::vector<std::string> arguments, const std::string& host,
    const std::map<std::string, std::string>& environment = {});

}  // namespace shoal::transport
