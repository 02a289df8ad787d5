// A check of addresses on the command line.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "core/base/net/address.h"
#include "fmt/format.h"

namespace shoal {

// Refuses what is no HOST:PORT with a port from 1 to 65535, or several such with commas.
inline CLI::Validator HostsAndPorts() {
  const auto check = [](std::string& text) {
    return AreAddresses(text)
               ? std::string()
               : fmt::format("is '{}', expected HOST:PORT, or several with commas", text);
  };
  return {check, "HOST:PORT[,HOST:PORT...]"};
}

}  // namespace shoal
