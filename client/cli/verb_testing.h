// For tests: the command line run as a function, its output kept.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "client/cli/app.h"

namespace shoal::cli {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline Outcome Shoal(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  Streams streams{out, err, {}, {}};
  const int code = RunShoal(arguments, streams);
  return {code, out.str(), err.str()};
}

}  // namespace shoal::cli
